#pragma once

#include "properties/check.hpp"

#include <optional>
#include <span>
#include <string_view>

/// The door to the device properties, D1 to D7.
namespace properties::device {

/// Which of them are held.
struct Scope {
  bool builds = true;  ///< every step by itself: D1, D2, D3, D5
  /// Each step with all ways that lengths reach the device, under all schedules; else, for speed, with the host's own
  /// lengths once and with one other way, which schedule_seed chooses, under all.
  bool thorough = true;
  bool sequence = true;  ///< the steps on one builder and in one graph: D1, D4
  bool faults = true;    ///< every call of a build made to fail in turn: D6
  std::int64_t max_entries = default_max_entries;
  /// As properties::Scope's, with what the host knows of the batch.
  void (*observe)(const attn::Batch&, const tl::expected<attn::Metadata, attn::Error>&) = nullptr;
};

/// Holds the device properties against a case on the runtime that is built in. The first that does not hold. A step's
/// `schedule_seed` orders the simulated device; `fail_call` makes that one call of its build fail instead of each in
/// turn. Without a device, or where the runtime cannot be steered or has no graphs, what needs it is left out. Throws
/// HipFailure when HIP fails outside of the library.
[[nodiscard]] std::optional<Finding> check_case(const batchtext::Case& parsed, const Scope& scope = {});

/// Steps of a case that `check_case` leaves out because they are larger than `max_entries`.
[[nodiscard]] std::int64_t num_left_out(const batchtext::Case& parsed, std::int64_t max_entries);

struct Claim {
  std::string_view id;
  std::string_view claim;
};
[[nodiscard]] std::span<const Claim> claims();

}  // namespace properties::device
