#include "cli/commands.hpp"
#include "cli/picture.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>

namespace {

constexpr const char* about =
    "Attention-batch metadata under test: computes what an LLM server's attention backend computes for a batch, and "
    "holds "
    "it against every invariant.";
constexpr const char* examples =
    "Examples:\n"
    "  attnfuzz check 8q1s1k_q16s4k_2q2k --threshold 4\n"
    "  attnfuzz show corpus/seeds/shape-mixed.batch --svg batch.svg\n"
    "  attnfuzz reduce crash-1234 > regression.txt\n"
    "  attnfuzz golden corpus/golden/upstream.jsonl\n"
    "  attnfuzz trace requests.csv --emit batches --every 1000\n"
    "  attnfuzz devices\n\n"
    "Exit codes: 0 no finding, 1 a finding or a difference, 2 input that makes no sense (nothing is written then).";

/// One line, whatever the text: an error is for people and for scripts that read line by line.
int fail(const std::string& what) {
  std::fflush(stdout);
  fmt::print(stderr, "attnfuzz: {}\n", cli::printable(what));
  return cli::bad_input;
}

/// What was printed and did not arrive is an error, not an answer.
int end(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return fail("stdout: cannot be written");
}

bool is_command(CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (command->get_name() == name) return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{about, "attnfuzz"};
  app.footer(examples);
  app.require_subcommand(1);
  int exit_code = cli::fine;
  cli::add_check(app, exit_code);
  cli::add_show(app, exit_code);
  cli::add_reduce(app, exit_code);
  cli::add_golden(app, exit_code);
  cli::add_trace(app, exit_code);
  cli::add_devices(app, exit_code);
  // CLI11 would only say that a subcommand is missing.
  if (argc > 1 && argv[1][0] != '-' && !is_command(app, argv[1]))
    return fail(fmt::format("unknown command '{}' (--help shows all)", argv[1]));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return end(app.exit(help));
  } catch (const CLI::ParseError& error) {
    return fail(std::string{error.what()} + " (--help shows the options)");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  return end(exit_code);
}
