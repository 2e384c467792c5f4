#include "properties/golden.hpp"

#include "cli/commands.hpp"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cli {
namespace {

struct Count {
  std::int64_t matched = 0;
  std::int64_t mismatched = 0;
};

int compare(const std::string& path, std::size_t most_shown) {
  std::ifstream file{path, std::ios::binary};
  if (!file) throw InputError(path + ": cannot be read");
  std::map<std::string, Count> counts;
  std::vector<std::string> differences;
  std::string line;
  std::int64_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto outcome = properties::compare_golden(line);
    if (!outcome) throw InputError(fmt::format("{}:{}:1: {}", path, number, outcome.error()));
    Count& count = counts[outcome->function];
    ++(outcome->mismatch ? count.mismatched : count.matched);
    if (outcome->mismatch && differences.size() < most_shown)
      differences.push_back(fmt::format("{}:{}: {}: {}", path, number, outcome->function, *outcome->mismatch));
  }
  if (file.bad() || counts.empty()) throw InputError(path + ": holds no record");

  Count total;
  fmt::print("{:<28} {:>8} {:>11}\n", "function", "matched", "mismatched");
  for (const auto& [function, count] : counts) {
    fmt::print("{:<28} {:>8} {:>11}\n", function, count.matched, count.mismatched);
    total.matched += count.matched;
    total.mismatched += count.mismatched;
  }
  fmt::print("{:<28} {:>8} {:>11}\n", "all", total.matched, total.mismatched);
  for (const std::string& difference : differences) fmt::print("{}\n", difference);
  return total.mismatched > 0 ? finding : fine;
}

}  // namespace

void add_golden(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("golden", "Compare a file of recorded results with this library");
  auto path = std::make_shared<std::string>();
  auto most_shown = std::make_shared<std::size_t>(10);
  command->add_option("file", *path, "JSON lines; corpus/golden/README.md has the format")->required();
  command->add_option("--show", *most_shown, "Differences to print at most")->capture_default_str();
  command->footer(
      "Example:\n"
      "  attnfuzz golden corpus/golden/upstream.jsonl\n\n"
      "Where the recorded implementation dies or drops a context, the contract's answer is expected instead.\n"
      "Exit codes: 0 all match, 1 some do not, 2 the file makes no sense.");
  command->callback([path, most_shown, &exit_code] { exit_code = compare(*path, *most_shown); });
}

}  // namespace cli
