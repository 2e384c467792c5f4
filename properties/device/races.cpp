#include "properties/device/steer.hpp"

#include <atomic>

namespace {
std::atomic<std::int64_t> reported{0};
}

/// ThreadSanitizer calls this with every report, once it is printed.
extern "C" void __tsan_on_report(void* report);
extern "C" void __tsan_on_report(void*) { ++reported; }

namespace properties::device {

std::int64_t num_races() { return reported; }

}  // namespace properties::device
