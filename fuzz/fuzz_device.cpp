// Goal:   the device builds what the CPU builds, copies nothing back, waits for nothing, allocates nothing, and
//         whatever the order of threads, blocks and streams.
// Method: text -> batch -> device builder of exactly the capacity needed, once for each way lengths reach the device
//         and each of two schedules, the second drawn from schedule_seed, one by AMD's rules and one by the portable
//         ones; compared with the CPU path by element.
// Leaves out: several builds (fuzz_device_sequence), failing calls (fuzz_device_faults), races (the build with
//         ThreadSanitizer).
#include "fuzz/features.hpp"
#include "fuzz/on_device.hpp"
#include "fuzz/target.hpp"
#include "properties/device/check.hpp"

FUZZ_CASES(device, (Mutations{.malformed_percent = 5, .schedule_percent = 10})) {
  if (!on_device()) return;
  require(properties::device::check_case(parsed, {.thorough = false,
                                                  .sequence = false,
                                                  .faults = false,
                                                  .max_entries = max_entries,
                                                  .observe = mark_features}),
          parsed);
}
