#include "properties/device/steer.hpp"

#include <hipsim/hipsim.hpp>

namespace properties::device {

bool can_steer() { return true; }

void follow(const Schedule& schedule) {
  hipsim::Config config = hipsim::config();
  config.seed = schedule.seed;
  config.mode = schedule.is_eager ? hipsim::Mode::eager : hipsim::Mode::lazy;
  config.warp_size = schedule.warp_size;
  config.rules = schedule.rules == Rules::amd ? hipsim::Rules::amd : hipsim::Rules::portable;
  hipsim::configure(config);
}

Rules followed_rules() { return hipsim::config().rules == hipsim::Rules::amd ? Rules::amd : Rules::portable; }

Counts counts() {
  const hipsim::Counters counted = hipsim::counters();
  return {counted.calls,
          counted.launches,
          counted.allocations,
          counted.synchronisations,
          counted.pageable_copies,
          counted.host_to_device_bytes,
          counted.device_to_host_bytes,
          counted.live_allocations,
          counted.live_handles};
}

void fail_call(std::int64_t n, hipError_t error) { hipsim::fail_call(n, error); }
void fail_some(int percent, std::uint64_t seed, hipError_t error) { hipsim::fail_some(percent, seed, error); }
bool stop_failing() { return hipsim::clear_fault(); }
std::string_view failed_function() { return hipsim::failed_function(); }

}  // namespace properties::device
