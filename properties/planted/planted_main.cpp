// Looks for a planted fault: holds one invariant against the corpus and drawn cases, and succeeds when it fails.
//   planted_<fault> INVARIANT CORPUS
#include "properties/check.hpp"
#include "properties/invariants.hpp"
#include "properties/random_batch.hpp"

#include "planted.hpp"

#include <algorithm>
#include <string>

namespace {

using properties::Finding;

constexpr std::int64_t max_entries = std::int64_t{1} << 14;  // as small as what the fuzz targets build
/// More than ten times what the slowest fault needs.
constexpr std::uint64_t num_drawn = 20000;

/// The invariant alone: what stands in front of it in the table may see the fault too.
std::optional<Finding> hold(const properties::Invariant& invariant, const batchtext::Case& parsed) {
  for (const batchtext::Step& step : parsed.steps) {
    const batchtext::Arrays arrays{step};
    // B1 is held by every build, others by what they do with one.
    properties::set_invariant_in_progress(invariant.id == "B1" ? "B1" : "build");
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
  const std::string id = argv[1];
  const auto table = properties::invariants();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& invariant) { return invariant.id == id; });
  return planted::look_for(id, argv[2], {.num_drawn = num_drawn}, draw, [&](const batchtext::Case& parsed) {
    if (found != table.end()) return hold(*found, parsed);
    return properties::check_case(parsed, {.families = "", .max_entries = max_entries});
  });
}
