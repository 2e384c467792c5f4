// Goal:   what a device builder has built before, and who else uses it, never shows: builds on two streams, each looked
//         at when the next is queued, and a captured build replayed on every step it has kernels for.
// Method: text -> several steps on one dirty builder, then one of them in a graph; compared with the CPU path.
// Leaves out: one build alone (fuzz_device), failing calls (fuzz_device_faults).
#include "fuzz/features.hpp"
#include "fuzz/on_device.hpp"
#include "fuzz/target.hpp"
#include "properties/device/check.hpp"

FUZZ_CASES(device_sequence, (Mutations{.max_steps = max_steps, .malformed_percent = 5, .schedule_percent = 10})) {
  if (!on_device()) return;
  require(properties::device::check_case(
              parsed, {.builds = false, .faults = false, .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
