// Looks for a planted fault of the device path: holds the device properties against the corpus and drawn cases, and
// succeeds when the one that is named is the one that fails.
//   planted_<fault> INVARIANT CORPUS
#include "properties/death.hpp"
#include "properties/device/check.hpp"
#include "properties/random_batch.hpp"

#include "planted.hpp"

#include <string>

namespace {

constexpr std::int64_t max_entries = std::int64_t{1} << 12;  // as small as what the fuzz targets build
/// More than ten times what the slowest fault needs.
constexpr planted::Share everything{.num_drawn = 2000};
/// Where ThreadSanitizer watches, every GPU thread is one of its own: a hundred times slower.
constexpr planted::Share watched{.one_file_in = 20, .num_drawn = 20};

/// The part of the check that holds the invariant: what stands in front of it may see the fault too.
properties::device::Scope scope_of(std::string_view id) {
  properties::device::Scope scope{.builds = false, .sequence = false, .faults = false, .max_entries = max_entries};
  scope.builds = id == "D1" || id == "D2" || id == "D3" || id == "D5" || id == "D7";
  scope.sequence = id == "D1" || id == "D2" || id == "D3" || id == "D4" || id == "D7";
  scope.faults = id == "D6";
  return scope;
}

batchtext::Case draw(std::uint64_t seed) {
  properties::Random random{seed};
  auto parsed = properties::draw_case(random, 3);
  for (batchtext::Step& step : parsed.steps) {
    step.schedule_seed = static_cast<std::int32_t>(random.below(16));
    // One call each: the corpus has had all calls of a build fail.
    step.fail_call = static_cast<std::int32_t>(random.between(1, 20));
  }
  return parsed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string id = argv[1];
  return planted::look_for(id, argv[2], id == "D7" ? watched : everything, draw, [&](const batchtext::Case& parsed) {
    return properties::device::check_case(parsed, scope_of(id));
  });
}
