#include "properties/reduce.hpp"

#include "cli/commands.hpp"
#include "cli/input.hpp"
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

struct ReduceOptions {
  std::string input;
  ConfigOptions config;
  double seconds = 60;
  std::string keep_in;
};

/// The time there is is the whole: nobody knows how many cases are left.
Progress::State progress_state(const properties::Reduction& reduction, double elapsed_s, double limit_s) {
  std::size_t num_requests = 0;
  for (const batchtext::Step& step : reduction.smallest.steps) num_requests += step.requests.size();
  return {reduction.tried, elapsed_s / limit_s,
          fmt::format("{} cases tried, {} kept, {} requests left", reduction.tried, reduction.kept, num_requests)};
}

/// Keeps the case as it came, so that nothing is lost by reducing it. Written aside and renamed.
std::filesystem::path keep_unshrunk(const ReduceOptions& options, const batchtext::Case& parsed,
                                    const properties::Finding& finding) {
  const auto file = std::filesystem::path{options.keep_in} / fmt::format("unshrunk-{}.batch", finding.id);
  const auto aside = std::filesystem::path{file.string() + ".part"};
  std::ofstream out{aside, std::ios::binary};
  out << "# Unshrunk case of a finding, kept by attnfuzz reduce. " << finding.id << ": " << finding.claim << "\n"
      << batchtext::print(parsed);
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(aside, file, error);
  if (!out || error) throw InputError(fmt::format("{}: cannot be written", file.string()));
  return file;
}

int reduce(const ReduceOptions& options) {
  NamedCase named = load_cases({options.input}).front();
  options.config.apply(named.parsed);
  const auto check = [](const batchtext::Case& parsed) { return properties::check_case(parsed); };
  const auto first = check(named.parsed);
  if (!first) {
    fmt::print("{}: no finding, nothing to reduce\n", named.name);
    return fine;
  }
  const auto kept = keep_unshrunk(options, named.parsed, *first);
  const auto start = Clock::now();
  Progress progress{"reduce", "cases"};
  const auto reduction = properties::reduce(named.parsed, *first, check, [&](const properties::Reduction& so_far) {
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - start).count();
    progress.update([&] { return progress_state(so_far, elapsed_s, options.seconds); });
    return elapsed_s < options.seconds;
  });
  progress.clear();
  const std::string shrinking =
      fmt::format("{} of {} smaller cases kept, {}; run again: {}; unshrunk case in {}", reduction.kept,
                  reduction.tried, reduction.complete ? "none smaller has the finding" : "stopped by --seconds",
                  reduction.repeats ? "same finding" : "NO finding, it does not repeat", kept.string());
  fmt::print("{}", properties::report(reduction.finding, reduction.smallest,
                                      fmt::format("attnfuzz check {}", kept.string()), shrinking));
  return finding;
}

}  // namespace

void add_reduce(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("reduce", "Find the smallest batch with the same finding");
  auto options = std::make_shared<ReduceOptions>();
  command->add_option("input", options->input, "A file in the text form, - for stdin, or a batch in vLLM's grammar")
      ->required();
  command->add_option("--seconds", options->seconds, "Longest time to look for smaller cases")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--keep-in", options->keep_in, "Folder for the unshrunk case; the current one unless given")
      ->check(CLI::ExistingDirectory);
  options->config.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnfuzz reduce out/fuzz/metadata/findings/crash-1234\n"
      "  attnfuzz reduce finding.batch --seconds 600\n\n"
      "Prints the report of the smallest case, with the regression ready to paste. The invariant's id never changes "
      "on\n"
      "the way, and the result is run once more.\n"
      "Exit codes: 0 the input has no finding, 1 it has, 2 input that makes no sense.");
  command->callback([options, &exit_code] { exit_code = reduce(*options); });
}

}  // namespace cli
