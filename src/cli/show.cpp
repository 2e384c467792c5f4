#include "attn/metadata.hpp"
#include "cli/commands.hpp"
#include "cli/device_path.hpp"
#include "cli/drawing.hpp"
#include "cli/files.hpp"
#include "cli/input.hpp"
#include "cli/json.hpp"
#include "cli/picture.hpp"
#include "properties/check.hpp"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cli {
namespace {

/// Numbers in one JSON document: past that it takes a gigabyte of memory to make and nobody reads it.
constexpr std::int64_t max_json_entries = std::int64_t{1} << 24;

/// Letters of a case's name in headings, so that the number of the step still fits behind it.
constexpr std::size_t max_name_letters = 60;

struct Options {
  std::vector<std::string> inputs;
  ConfigOptions config;
  std::optional<std::string> svg;
  std::optional<std::int64_t> step;
  bool json = false;
  bool device = false;
};

Canvas canvas_of_stdout() {
  Canvas canvas;
  if (isatty(STDOUT_FILENO) == 0) return canvas;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) canvas.columns = size.ws_col;
  // https://no-color.org: any value but the empty one.
  const char* no_color = std::getenv("NO_COLOR");
  canvas.colour = no_color == nullptr || *no_color == '\0';
  return canvas;
}

using Built = tl::expected<attn::Metadata, attn::Error>;

std::string step_text(std::string_view title, const batchtext::Step& step, const attn::Batch& batch, const Built& built,
                      const Canvas& canvas) {
  std::string out = fmt::format("{}\n{}\n", title, properties::table(step));
  if (!built)
    return out + fmt::format("no metadata: the builder refuses this batch, as the contract says\n  {}\n",
                             attn::message(built.error()));
  return out + "metadata\n" + metadata_table(batch, *built) + "\n" + picture(batch, *built, canvas);
}

/// What a run of the command has to say, all of it made before any of it is written.
struct Answer {
  std::string text;
  Json cases = Json::array();
  std::int64_t num_json_entries = 0;
  Drawing drawing;
};

void add_to_json(Answer& answer, Json& steps, const std::string& title, const Built& built) {
  if (built) answer.num_json_entries += num_json_entries(*built);
  if (answer.num_json_entries > max_json_entries)
    throw InputError(fmt::format("{}: the arrays have {} numbers, --json prints {} at most", title,
                                 answer.num_json_entries, max_json_entries));
  steps.push_back(to_json(built));
}

void add_case(Answer& answer, const NamedCase& named, const Options& options, const Canvas& canvas) {
  const auto num_steps = static_cast<std::int64_t>(named.parsed.steps.size());
  if (options.step && *options.step > num_steps)
    throw InputError(fmt::format("{}: there is no step {}, the last is step {}",
                                 shortened(named.name, max_name_letters), *options.step, num_steps));
  attn::MetadataBuilder builder;
  Json steps = Json::array();
  for (std::int64_t number = 1; number <= num_steps; ++number) {
    if (options.step && *options.step != number) continue;
    const batchtext::Step& step = named.parsed.steps[static_cast<std::size_t>(number - 1)];
    const batchtext::Arrays arrays{step};
    std::string title = shortened(named.name, max_name_letters);
    if (num_steps > 1) title += fmt::format(", step {} of {}", number, num_steps);
    const auto add = [&](const Built& built, const std::string& scalars) {
      if (options.svg) answer.drawing.add(title, arrays.batch(), built);
      if (options.json) return add_to_json(answer, steps, title, built);
      if (!answer.text.empty()) answer.text += "\n";
      answer.text += step_text(title, step, arrays.batch(), built, canvas) + scalars;
    };
    if (options.device)
      show_from_device(step, add);
    else
      add(builder.build(arrays.batch()), "");
  }
  if (options.json) answer.cases.push_back({{"name", named.name}, {"steps", std::move(steps)}});
}

/// A drawing in place of the batch it shows would be a loss.
void refuse_input(const std::string& svg, const std::vector<std::string>& inputs) {
  std::error_code error;
  for (const std::string& input : inputs)
    if (std::filesystem::equivalent(svg, input, error))
      throw InputError(fmt::format("{}: is one of the inputs, --svg would replace it", svg));
}

int show(const Options& options) {
  if (options.svg) refuse_input(*options.svg, options.inputs);
  if (options.device)
    if (const auto reason = no_device_path()) throw InputError(*reason);
  std::vector<NamedCase> cases = load_cases(options.inputs);
  const Canvas canvas = canvas_of_stdout();
  Answer answer;
  for (NamedCase& named : cases) {
    options.config.apply(named.parsed);
    add_case(answer, named, options, canvas);
  }
  if (options.svg) replace_file(*options.svg, answer.drawing.svg());
  if (options.json) {
    Json document = Json::object();
    document["cases"] = std::move(answer.cases);
    // File names may hold bytes that are no UTF-8.
    answer.text = document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  // What does not reach stdout is noticed at the end of the program.
  std::fwrite(answer.text.data(), 1, answer.text.size(), stdout);
  return fine;
}

constexpr const char* examples = R"(Examples:
  attnfuzz show 8q1s1k_3q512s4k_q100s9000_2q2k --workspace 4096
  attnfuzz show 8q1s1k_3q512s4k_q100s9000_2q2k --workspace 4096 --policy packed --svg packed.svg
  attnfuzz show corpus/seeds/shape-zero-chunks.batch --step 1
  attnfuzz show corpus/seeds/shape-mixed.batch --device
  attnfuzz show crash.batch --json | jq '.cases[0].steps[0].context.seq_tot'
A batch that the contract refuses is shown with the error it gets; that is an answer, and the exit code is 0.)";

}  // namespace

void add_show(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("show", "Show batches and their metadata as tables and pictures");
  command
      ->add_option("inputs", options->inputs,
                   "Files in the text form, - for stdin, or batches in vLLM's grammar such as 8q1s1k_q16s4k_2q2k")
      ->type_name("FILE|SPEC|-")
      ->required();
  options->config.add_to(*command);
  command->add_option("--svg", options->svg, "Draw everything into this SVG file, too")->type_name("FILE");
  command->add_flag("--json", options->json, "Print the metadata as one JSON document instead");
  command->add_flag("--device", options->device, "Build on the device, and show what comes back from there");
  command->add_option("--step", options->step, "Show this step of each case alone, counted from 1")
      ->type_name("N")
      ->check(whole_number(1));
  command->footer(examples);
  command->callback([options, &exit_code] { exit_code = show(*options); });
}

}  // namespace cli
