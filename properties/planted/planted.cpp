#include "planted.hpp"

#include "properties/death.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace planted {
namespace {

namespace fs = std::filesystem;

std::string expected;

/// A sanitizer or a page without access rights ends the process. When that happens while the invariant is being
/// checked, the fault is caught.
void on_death() {
  const bool caught = properties::invariant_in_progress() == expected;
  const std::string text = fmt::format("{}: the process died while {} was checked\n", caught ? "caught" : "NOT CAUGHT",
                                       properties::invariant_in_progress());
  static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
  _exit(caught ? 0 : 1);
}

std::vector<batchtext::Case> corpus_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".batch") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<batchtext::Case> cases;
  for (const fs::path& file : files) {
    std::ifstream in{file};
    auto parsed = batchtext::parse(std::string{std::istreambuf_iterator<char>{in}, {}});
    if (parsed) cases.push_back(std::move(*parsed));
  }
  return cases;
}

}  // namespace

int look_for(const std::string& expected_id, const std::string& folder, const Share& share,
             const std::function<batchtext::Case(std::uint64_t)>& draw,
             const std::function<std::optional<properties::Finding>(const batchtext::Case&)>& check) {
  expected = expected_id;
  properties::call_on_death(on_death);
  std::uint64_t tried = 0;
  const auto try_case = [&](const batchtext::Case& parsed, std::string_view from) {
    ++tried;
    const auto finding = check(parsed);
    if (!finding || finding->id != expected) return;
    fmt::print("caught by {} after {} cases ({}): {}: {}\n", finding->id, tried, from, finding->where,
               finding->difference);
    std::fflush(stdout);
    // Not through the end of the process, where a leak that is the fault would be reported once more.
    std::_Exit(0);
  };
  const auto corpus = corpus_of(folder);
  for (std::size_t i = 0; i < corpus.size(); i += share.one_file_in) try_case(corpus[i], "corpus");
  for (std::uint64_t seed = 0; seed < share.num_drawn; ++seed) try_case(draw(seed), "drawn");
  fmt::print("NOT CAUGHT by {} in {} cases\n", expected, tried);
  return 1;
}

}  // namespace planted
