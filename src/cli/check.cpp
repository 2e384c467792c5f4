#include "cli/commands.hpp"
#include "cli/device_path.hpp"
#include "cli/guarded_check.hpp"
#include "cli/input.hpp"
#include "cli/numbers.hpp"
#include "cli/progress.hpp"

#include "attn/metadata.hpp"
#include "properties/check.hpp"
#include "properties/edit.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace cli {
namespace {

struct CheckOptions {
  std::vector<std::string> inputs;
  ConfigOptions config;
  bool reorder = false;
  bool quiet = false;
  bool device = false;
};

/// What the library says of a case, in a line: the counts of its last step, or the contract's error.
std::string answer_of(const batchtext::Case& parsed) {
  const batchtext::Arrays arrays{parsed.steps.back()};
  attn::MetadataBuilder builder;
  const auto built = builder.build(arrays.batch());
  if (!built) return "refused, as the contract says: " + attn::message(built.error());
  const attn::Split& split = built->split;
  return fmt::format("{} decodes, {} extends, {} prefills, {} padding, {} chunks", split.num_decodes, split.num_extends,
                     split.num_prefills, split.num_padding, built->context.num_chunks);
}

/// The command line that repeats this check of one input.
std::string command_of(const CheckOptions& options, const std::string& input) {
  std::string command = "attnfuzz check " + input;
  if (options.config.decode_threshold) command += fmt::format(" --threshold {}", *options.config.decode_threshold);
  if (options.config.workspace_tokens) command += fmt::format(" --workspace {}", *options.config.workspace_tokens);
  if (options.config.window_left) command += fmt::format(" --window {}", *options.config.window_left);
  if (options.config.chunk_policy) command += fmt::format(" --policy {}", *options.config.chunk_policy);
  if (options.config.chunk_alignment) command += fmt::format(" --alignment {}", *options.config.chunk_alignment);
  if (options.reorder) command += " --reorder";
  if (options.device) command += " --device";
  return command;
}

/// What "ok" does not say.
std::string left_out_of(const batchtext::Case& parsed, bool device) {
  const std::int64_t count = device ? num_left_out_on_device(parsed) : 0;
  if (count == 0) return "";
  return fmt::format("; {} of {} steps too large for the device, NOT checked there", count, parsed.steps.size());
}

int check(const CheckOptions& options) {
  int findings = 0;
  auto cases = load_cases(options.inputs);
  const auto num_cases = std::ssize(cases);
  std::int64_t num_checked = 0;
  Progress progress{"check", "inputs"};
  for (NamedCase& named : cases) {
    progress.update([&]() -> Progress::State {
      return {num_checked, static_cast<double>(num_checked) / static_cast<double>(num_cases),
              fmt::format("{} of {} inputs checked", grouped(num_checked), grouped(num_cases))};
    });
    options.config.apply(named.parsed);
    if (options.reorder)
      for (batchtext::Step& step : named.parsed.steps) properties::put_in_order(step);
    const auto finding = guarded_check(named.parsed, options.device ? Path::device : Path::cpu);
    ++num_checked;
    if (finding || !options.quiet) progress.clear();
    if (finding) {
      ++findings;
      fmt::print("{}: ", named.name);
      fmt::print("{}\n", properties::report(*finding, named.parsed, command_of(options, named.name)));
    } else if (!options.quiet) {
      fmt::print("{}: ok, {}{}\n", named.name, answer_of(named.parsed), left_out_of(named.parsed, options.device));
    }
  }
  progress.clear();
  if (cases.size() > 1 || options.quiet) fmt::print("{} checked, {} with a finding\n", cases.size(), findings);
  return findings > 0 ? finding : fine;
}

}  // namespace

void add_check(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("check", "Hold every invariant against batches");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("input", options->inputs, "Files in the text form, - for stdin, or batches in vLLM's grammar")
      ->required();
  options->config.add_to(*command);
  command->add_flag("--reorder", options->reorder, "Bring the requests in the order decode, extend, prefill first");
  command->add_flag("--device", options->device,
                    "Build on the device, and hold what is promised of that path: D1 to D7");
  command->add_flag("--quiet", options->quiet, "Print findings and the total only");
  command->footer(
      "Examples:\n"
      "  attnfuzz check 8q1s1k_q16s4k_2q2k --threshold 4\n"
      "  attnfuzz check corpus/seeds/*.batch --quiet\n"
      "  attnfuzz check 2q1k_32q1s1k --reorder       # prefills first, as vLLM's benchmarks write it\n"
      "  attnfuzz check corpus/seeds/*.batch --device --quiet\n"
      "  printf 'attnfuzz 1\\nbatch 2q3s0\\n' | attnfuzz check -\n\n"
      "Exit codes: 0 every invariant holds, 1 one does not, 2 input that makes no sense.");
  command->callback([options, &exit_code] { exit_code = check(*options); });
}

}  // namespace cli
