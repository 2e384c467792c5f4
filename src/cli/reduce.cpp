#include "properties/reduce.hpp"

#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/guarded_check.hpp"
#include "cli/input.hpp"
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct ReduceOptions {
  std::string input;
  ConfigOptions config;
  bool device = false;
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

/// FNV-1a: tells the files of different findings with the same id apart.
std::uint32_t hash_of(std::string_view text) {
  std::uint32_t hash = 2166136261;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return hash;
}

void write_case(const fs::path& file, std::string_view comment, const batchtext::Case& parsed) {
  replace_file(file.string(), fmt::format("# {}\n{}", comment, batchtext::print(parsed)));
}

int reduce(const ReduceOptions& options) {
  NamedCase named = load_cases({options.input}).front();
  options.config.apply(named.parsed);
  const Path path = options.device ? Path::device : Path::cpu;
  const auto first = guarded_check(named.parsed, path);
  if (!first) {
    fmt::print("{}: no finding, nothing to reduce\n", named.name);
    return fine;
  }
  const std::string suffix = fmt::format("{}-{:08x}.batch", first->id, hash_of(batchtext::print(named.parsed)));
  const fs::path unshrunk = fs::path{options.keep_in} / ("unshrunk-" + suffix);
  const fs::path reduced = fs::path{options.keep_in} / ("reduced-" + suffix);
  const std::string comment = fmt::format("{}: {}", first->id, first->claim);
  write_case(unshrunk, comment, named.parsed);

  const auto start = Clock::now();
  Progress progress{"reduce", "cases"};
  const auto check = [path](const batchtext::Case& parsed) { return guarded_check(parsed, path, true); };
  const auto reduction = properties::reduce(named.parsed, *first, check, [&](const properties::Reduction& so_far) {
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - start).count();
    progress.update([&] { return progress_state(so_far, elapsed_s, options.seconds); });
    return elapsed_s < options.seconds;
  });
  progress.clear();
  write_case(reduced, comment, reduction.smallest);
  const std::string shrinking =
      fmt::format("{} of {} smaller cases kept, {}; run again: {}; unshrunk case in {}", reduction.kept,
                  reduction.tried, reduction.complete ? "none smaller has the finding" : "stopped by --seconds",
                  reduction.repeats ? "same finding" : "NO finding, it does not repeat", unshrunk.string());
  fmt::print("{}",
             properties::report(reduction.finding, reduction.smallest,
                                fmt::format("attnfuzz check {}{}", reduced.string(), options.device ? " --device" : ""),
                                shrinking));
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
      ->check(CLI::Validator(
          [](const std::string& text) {
            double value = -1;
            const bool is_fine = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
            return is_fine ? std::string{} : fmt::format("'{}' is no time in seconds", text);
          },
          ""));
  command
      ->add_option("--keep-in", options->keep_in,
                   "Folder for the unshrunk and the reduced case; the current one unless given")
      ->check(CLI::ExistingDirectory);
  command->add_flag("--device", options->device, "A finding of the device path");
  options->config.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnfuzz reduce out/fuzz/metadata/findings/crash-1234\n"
      "  attnfuzz reduce finding.batch --seconds 600\n"
      "  attnfuzz reduce out/fuzz/device/findings/crash-5678 --device\n\n"
      "Prints the report of the smallest case, with the regression ready to paste. The invariant's id never changes\n"
      "on the way, and the result is run once more. A case that crashes or hangs is reduced like any other.\n"
      "Exit codes: 0 the input has no finding, 1 it has, 2 input that makes no sense.");
  command->callback([options, &exit_code] { exit_code = reduce(*options); });
}

}  // namespace cli
