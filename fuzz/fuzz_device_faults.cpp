// Goal:   a HIP call that fails is an error with its name and the call's; nothing leaks, the metadata of the build
//         before stands, and the next build is right.
// Method: text -> batch -> each call of create and build made to fail in turn (fail_call in the text: that one alone).
// Leaves out: what a build makes when nothing fails (fuzz_device).
#include "fuzz/features.hpp"
#include "fuzz/on_device.hpp"
#include "fuzz/target.hpp"
#include "properties/device/check.hpp"

FUZZ_CASES(device_faults, (Mutations{.schedule_percent = 10, .fail_call_percent = 40})) {
  if (!on_failing_device()) return;
  require(properties::device::check_case(
              parsed, {.builds = false, .sequence = false, .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
