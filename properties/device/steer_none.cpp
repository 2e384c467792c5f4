// For runtimes that only run: a card's, or another one on the host.
#include "properties/device/steer.hpp"

namespace properties::device {

bool can_steer() { return false; }
void follow(const Schedule&) {}
Rules followed_rules() { return Rules::amd; }
Counts counts() { return {}; }
void fail_call(std::int64_t, hipError_t) {}
void fail_some(int, std::uint64_t, hipError_t) {}
bool stop_failing() { return false; }
std::string_view failed_function() { return {}; }

}  // namespace properties::device
