// Runs a fuzz target on files and on drawn cases, without a fuzzing engine: any compiler builds it.
#include "fuzz/target.hpp"
#include "properties/death.hpp"
#include "properties/random_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> paths;
  std::uint64_t num_drawn = 0;
  std::uint64_t seed = 1;
  bool help = false;
};

/// What could not be done, in a line.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::uint64_t number_behind(const std::vector<std::string>& args, std::size_t option) {
  const std::string text = option + 1 < args.size() ? args[option + 1] : "";
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    throw InputError(fmt::format("{} needs a whole number, not '{}'", args[option], text));
  return value;
}

Options options_of(const std::vector<std::string>& args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h")
      options.help = true;
    else if (args[i] == "--draw")
      options.num_drawn = number_behind(args, i++);
    else if (args[i] == "--seed")
      options.seed = number_behind(args, i++);
    else if (args[i].starts_with("--"))
      throw InputError(fmt::format("unknown option '{}'; see --help", args[i]));
    else
      options.paths.push_back(args[i]);
  }
  return options;
}

/// The files named, and those in the folders named, in the order of their names.
std::vector<fs::path> files_of(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::exists(path, error)) throw InputError(path + ": no such file or folder");
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    const auto first = static_cast<std::ptrdiff_t>(files.size());
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
    std::sort(files.begin() + first, files.end());
  }
  return files;
}

/// How far a run is, on stderr, once it takes more than two seconds; then a line every ten.
class Progress {
 public:
  explicit Progress(std::uint64_t total) : total_(total) {}

  void show(std::uint64_t count) {
    const std::chrono::duration<double> elapsed = Clock::now() - start_;
    if (elapsed.count() < next_s_) return;
    next_s_ = elapsed.count() + 10;
    fmt::print(stderr, "{}: {} of {} inputs, {:.0f}/s\n", fuzz::target_name, count, total_,
               static_cast<double>(count) / elapsed.count());
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  double next_s_ = 2;
  std::uint64_t total_;
};

/// What dies without a report of its own still names its input.
std::string last_word;
void say_last_word() { static_cast<void>(!write(STDERR_FILENO, last_word.data(), last_word.size())); }

/// `text` is on the heap in its exact size: a read past the end of the input shows.
void run_text(const std::vector<char>& text, const fs::path& file) {
  fuzz::set_source(file.string());
  last_word = fmt::format("\n{}: the input is {}\n", fuzz::target_name, file.string());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

void run_file(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  if (!in) throw InputError(file.string() + ": cannot be read");
  run_text({std::istreambuf_iterator<char>{in}, {}}, file);
}

/// A case with as many steps as the target takes, broken as often as its mutator breaks them.
batchtext::Case draw_case(properties::Random& random) {
  auto parsed = properties::draw_case(random, static_cast<int>(fuzz::target_mutations.max_steps));
  const auto kind = static_cast<attn::Error::Kind>(random.below(attn::Error::num_kinds));
  if (random.chance(fuzz::target_mutations.malformed_percent) && properties::is_builder_kind(kind))
    parsed.steps.back() = properties::draw_malformed(random, kind, fuzz::max_entries);
  // As many orders as a number of five digits tells apart.
  for (auto& step : parsed.steps) step.schedule_seed = static_cast<std::int32_t>(random.below(1 << 16));
  return parsed;
}

/// The case of one seed. Its file is there while it runs, and stays when that does not end well.
void run_drawn(std::uint64_t seed) {
  properties::Random random{seed};
  const std::string text = batchtext::print(draw_case(random));
  const fs::path file = fmt::format("drawn-{}.batch", seed);
  if (!(std::ofstream{file, std::ios::binary} << text << std::flush))
    throw InputError(file.string() + ": cannot be written");
  run_text({text.begin(), text.end()}, file);
  fs::remove(file);
}

int run(const Options& options) {
  const std::vector<fs::path> files = files_of(options.paths);
  const std::uint64_t total = files.size() + options.num_drawn;
  Progress progress{total};
  properties::call_on_death(say_last_word);
  for (std::uint64_t i = 0; i < total && !fuzz::is_skipped(); ++i) {
    progress.show(i);
    if (i < files.size())
      run_file(files[i]);
    else
      run_drawn(options.seed + (i - files.size()));
  }
  if (fuzz::is_skipped()) return 2;
  fmt::print("{}: {} inputs run, no finding\n", fuzz::target_name, total);
  return 0;
}

void print_help() {
  fmt::print(
      "{0}: runs the fuzz target on files and on drawn cases\n\n"
      "  {0} [--draw N] [--seed S] FILE|FOLDER...\n\n"
      "  --draw N  after the files, N cases drawn at random, of the seeds S, S + 1, ...\n"
      "  --seed S  the first seed, 1 if not given\n\n"
      "Examples:\n"
      "  {0} corpus/seeds corpus/regressions\n"
      "  {0} --draw 10000 --seed 20001\n\n"
      "A finding is reported on stderr and aborts; a drawn case is then left in drawn-<seed>.batch.\n"
      "Exit code 2: an input that cannot be read, or nothing to check on (no device).\n",
      fuzz::target_name);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = options_of({argv + 1, argv + argc});
    const bool is_empty = options.paths.empty() && options.num_drawn == 0;
    if (!options.help && !is_empty) return run(options);
    print_help();
    return options.help ? 0 : 2;
  } catch (const InputError& error) {
    fmt::print(stderr, "{}: {}\n", fuzz::target_name, error.what());
    return 2;
  }
}
