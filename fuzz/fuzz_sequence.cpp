// Goal:   what a builder has built before never shows in what it builds next.
// Method: text -> several steps on one dirty builder; each compared with a fresh builder, and chunks counted. An error
//         in between leaves the last metadata standing.
// Leaves out: what one step alone shows (fuzz_metadata).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"

FUZZ_CASES(sequence, (Mutations{.max_steps = max_steps, .malformed_percent = 5})) {
  require(properties::check_case(parsed, {.families = "CBW", .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
