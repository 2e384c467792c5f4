#include "properties/golden.hpp"

#include "cli/commands.hpp"
#include "cli/input.hpp"
#include "cli/numbers.hpp"
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace cli {
namespace {

struct Count {
  std::int64_t matched = 0;
  std::int64_t mismatched = 0;
  std::int64_t superseded = 0;

  void add(const properties::GoldenOutcome& outcome) {
    if (!outcome.superseded.empty())
      ++superseded;
    else
      ++(outcome.mismatch ? mismatched : matched);
  }
};

/// How much of a file is read and compared.
struct Reading {
  std::int64_t file_bytes = 0;  ///< 0 for what is no regular file: a pipe says no size
  std::int64_t read_bytes = 0;
  std::int64_t num_records = 0;

  explicit Reading(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return;
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error) file_bytes = static_cast<std::int64_t>(bytes);
  }

  [[nodiscard]] Progress::State progress_state() const {
    const auto megabytes = [](std::int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6); };
    const std::string records = fmt::format("MB read, {} records compared", grouped(num_records));
    if (file_bytes == 0) return {num_records, std::nullopt, fmt::format("{} {}", megabytes(read_bytes), records)};
    return {num_records, static_cast<double>(read_bytes) / static_cast<double>(file_bytes),
            fmt::format("{} of {} {}", megabytes(read_bytes), megabytes(file_bytes), records)};
  }
};

/// Longest line of a file. Recorded ones have 27 KiB; what has no line ends at all was meant for something else.
constexpr std::streamsize max_line_bytes = 1 << 20;

int compare(const std::string& path, std::size_t most_shown) {
  std::ifstream file{path, std::ios::binary};
  if (!file) throw InputError(path + ": cannot be read");
  std::map<std::string, Count> counts;
  Count total;
  std::map<std::string, std::int64_t> remarks;  ///< and how many records each is about
  std::vector<std::string> differences;
  std::vector<char> buffer(static_cast<std::size_t>(max_line_bytes));
  std::int64_t number = 0;
  Reading reading{path};
  Progress progress{"golden", "records"};
  while (file.getline(buffer.data(), max_line_bytes)) {
    ++number;
    // To its end, and not to a byte of 0 on the way.
    const std::string_view line{buffer.data(), static_cast<std::size_t>(file.gcount() - (file.eof() ? 0 : 1))};
    reading.read_bytes += std::ssize(line) + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto outcome = properties::compare_golden(line);
    if (!outcome) throw InputError(fmt::format("{}:{}:1: {}", path, number, outcome.error()));
    counts[outcome->function].add(*outcome);
    total.add(*outcome);
    if (!outcome->superseded.empty()) ++remarks[fmt::format("superseded, not counted: {}", outcome->superseded)];
    for (const std::string_view field : outcome->left_out) ++remarks[fmt::format("not compared: {}", field)];
    if (outcome->mismatch && outcome->superseded.empty() && differences.size() < most_shown)
      differences.push_back(fmt::format("{}:{}: {}: {}", path, number, outcome->function, *outcome->mismatch));
    ++reading.num_records;
    progress.update([&] { return reading.progress_state(); });
  }
  progress.clear();
  if (file.gcount() == max_line_bytes - 1)
    throw InputError(fmt::format("{}:{}:1: a line of more than {} bytes", path, number + 1, max_line_bytes));
  if (file.bad() || counts.empty()) throw InputError(path + ": holds no record");

  const auto print = [](std::string_view function, const Count& count) {
    fmt::print("{:<28} {:>8} {:>11} {:>11}\n", function, count.matched, count.mismatched, count.superseded);
  };
  fmt::print("{:<28} {:>8} {:>11} {:>11}\n", "function", "matched", "mismatched", "superseded");
  for (const auto& [function, count] : counts) print(function, count);
  print("all", total);
  for (const auto& [remark, records] : remarks) fmt::print("{} ({} records)\n", remark, records);
  for (const std::string& difference : differences) fmt::print("{}\n", difference);
  return total.mismatched > 0 ? finding : fine;
}

}  // namespace

void add_golden(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("golden", "Compare a file of recorded results with this library");
  auto path = std::make_shared<std::string>();
  auto most_shown = std::make_shared<std::size_t>(10);
  command->add_option("file", *path, "JSON lines; corpus/golden/README.md has the format")->required();
  command->add_option("--show", *most_shown, "Differences to print at most")
      ->check(whole_number(0))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  attnfuzz golden corpus/golden/upstream.jsonl\n"
      "  attnfuzz golden corpus/golden/vllm-0.33.0.jsonl\n\n"
      "Where the recorded implementation dies or drops a context, the contract's answer is expected instead. Answers "
      "that a\n"
      "later release of vLLM has changed are counted as superseded: the library follows the newest.\n"
      "Exit codes: 0 all match, 1 some do not, 2 the file makes no sense.");
  command->callback([path, most_shown, &exit_code] { exit_code = compare(*path, *most_shown); });
}

}  // namespace cli
