// Looks for a planted fault: holds one invariant against the corpus and drawn cases, and succeeds when it fails.
//   planted_<fault> INVARIANT CORPUS
#include "properties/check.hpp"
#include "properties/death.hpp"
#include "properties/invariants.hpp"
#include "properties/random_batch.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using properties::Finding;

std::string expected_id;
constexpr std::int64_t max_entries = std::int64_t{1} << 14;  // as small as what the fuzz targets build
/// More than ten times what the slowest fault needs.
constexpr std::uint64_t num_drawn = 20000;

/// A sanitizer or a page without access rights ends the process. When that happens while the invariant is being
/// checked, the fault is caught.
void on_death() {
  const bool caught = properties::invariant_in_progress() == expected_id;
  const std::string text = fmt::format("{}: the process died while {} was checked\n", caught ? "caught" : "NOT CAUGHT",
                                       properties::invariant_in_progress());
  static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
  _exit(caught ? 0 : 1);
}

/// The invariant alone: what stands in front of it in the table may see the fault too.
std::optional<Finding> hold(const properties::Invariant& invariant, const batchtext::Case& parsed) {
  for (const batchtext::Step& step : parsed.steps) {
    const batchtext::Arrays arrays{step};
    attn::MetadataBuilder builder{max_entries};
    const auto built = builder.build(arrays.batch());
    if (!built) continue;
    const auto rows = properties::naive::rows_of(arrays.batch());
    properties::set_invariant_in_progress(invariant.id);
    const auto contexts = properties::naive::contexts_of(rows);
    if (const auto verdict = invariant.holds({arrays.batch(), *built, rows, contexts, max_entries}))
      return Finding{std::string{invariant.id}, std::string{invariant.claim}, verdict->where, verdict->what};
  }
  return std::nullopt;
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

/// Drawn cases, every fourth one malformed.
batchtext::Case draw(std::uint64_t seed) {
  properties::Random random{seed};
  auto parsed = properties::draw_case(random, 3);
  const auto kind = static_cast<attn::Error::Kind>(random.below(attn::Error::num_kinds));
  if (seed % 4 == 0 && properties::is_builder_kind(kind))
    parsed.steps.push_back(properties::draw_malformed(random, kind, max_entries));
  return parsed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  expected_id = argv[1];
  properties::call_on_death(on_death);
  const auto table = properties::invariants();
  const auto found =
      std::find_if(table.begin(), table.end(), [](const auto& invariant) { return invariant.id == expected_id; });
  std::function<std::optional<Finding>(const batchtext::Case&)> check;
  if (found != table.end()) {
    check = [&](const batchtext::Case& parsed) { return hold(*found, parsed); };
  } else {
    check = [](const batchtext::Case& parsed) {
      return properties::check_case(parsed, {.families = "", .max_entries = max_entries});
    };
  }
  std::uint64_t tried = 0;
  const auto try_case = [&](const batchtext::Case& parsed, std::string_view from) {
    ++tried;
    const auto finding = check(parsed);
    if (!finding || finding->id != expected_id) return false;
    fmt::print("caught by {} after {} cases ({}): {}: {}\n", finding->id, tried, from, finding->where,
               finding->difference);
    return true;
  };
  for (const auto& parsed : corpus_of(argv[2]))
    if (try_case(parsed, "corpus")) return 0;
  for (std::uint64_t seed = 0; seed < num_drawn; ++seed)
    if (try_case(draw(seed), "drawn")) return 0;
  fmt::print("NOT CAUGHT by {} in {} cases\n", expected_id, tried);
  return 1;
}
