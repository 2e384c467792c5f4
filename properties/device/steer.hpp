#pragma once

#include <hip/hip_runtime_api.h>

#include <cstdint>
#include <string_view>

/// What only the simulated runtime can do: choose schedules, count calls, make one fail. The one place of the harness
/// that knows which runtime is built in.
namespace properties::device {

/// Whether the runtime can be steered. Without, the functions below do nothing, and D2, D3, D5 and D6 are not held.
[[nodiscard]] bool can_steer();

/// Whose word counts where AMD and CUDA promise different things: src/hipsim/README.md has a table of what differs.
enum class Rules : std::uint8_t {
  amd,
  portable,  ///< the stricter of the two
};
[[nodiscard]] constexpr std::string_view name(Rules rules) { return rules == Rules::amd ? "AMD's" : "portable"; }

/// In which order threads, blocks and streams run, and when.
struct Schedule {
  std::uint64_t seed = 0;  ///< 0: ascending
  bool is_eager = false;   ///< work runs when it is queued, not as late as the API allows
  int warp_size = 64;
  Rules rules = Rules::amd;
};
void follow(const Schedule& schedule);
/// The rules followed now.
[[nodiscard]] Rules followed_rules();

/// What calls of the API have asked for since the program began.
struct Counts {
  std::int64_t calls = 0;
  std::int64_t launches = 0;
  std::int64_t allocations = 0;
  std::int64_t synchronisations = 0;
  std::int64_t pageable_copies = 0;  ///< asynchronous by name, of memory that is not pinned: the host waits, or stages
  std::int64_t host_to_device_bytes = 0;
  std::int64_t device_to_host_bytes = 0;
  std::int64_t live_allocations = 0;  ///< now
  std::int64_t live_handles = 0;      ///< streams, events, graphs: now
};
[[nodiscard]] Counts counts();

/// Makes the n-th call from now fail, in place of whatever it would do.
void fail_call(std::int64_t n, hipError_t error);
/// Makes each call from now fail with a chance of `percent` in 100, drawn from `seed`.
void fail_some(int percent, std::uint64_t seed, hipError_t error);
/// Takes that back. True when it had happened.
bool stop_failing();
/// The function that was made to fail last.
[[nodiscard]] std::string_view failed_function();

/// Races that ThreadSanitizer has reported since the program began; 0 without it.
[[nodiscard]] std::int64_t num_races();

}  // namespace properties::device
