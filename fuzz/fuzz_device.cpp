// Goal:   the device builds what the CPU builds, copies nothing back, waits for nothing, allocates nothing, and
// whatever
//         the order of threads, blocks and streams.
// Method: text -> batch -> device builder of exactly the capacity needed, once for each way lengths reach the device
// and
//         each of two schedules, the second drawn from schedule_seed; compared with the CPU path element by element.
// Leaves out: several builds (fuzz_device_sequence), failing calls (fuzz_device_faults), races (ThreadSanitizer's
// build).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"
#include "properties/device/check.hpp"

FUZZ_CASES(device, (Mutations{.malformed_percent = 5, .schedule_percent = 10})) {
  require(properties::device::check_case(parsed, {.all_lengths = false,
                                                  .sequence = false,
                                                  .faults = false,
                                                  .max_entries = max_entries,
                                                  .observe = mark_features}),
          parsed);
}
