#pragma once

#include "properties/check.hpp"

#include <cstdint>
#include <optional>

namespace cli {

/// Longest time a case may take. Batches take microseconds, the largest a few seconds; what takes longer hangs.
inline constexpr unsigned longest_check_s = 60;

/// What a check builds with.
enum class Path : std::uint8_t { cpu, device };

/// `properties::check_case`, or the device's, in a process of its own: a case that crashes or hangs there is a finding
/// ("crash", "hang") like any other, and this process goes on. What the other process has to say on stderr, a
/// sanitizer's report for one, is shown unless `quiet`. Throws InputError where no process can be had, or no device.
[[nodiscard]] std::optional<properties::Finding> guarded_check(const batchtext::Case& parsed, Path path,
                                                               bool quiet = false);

}  // namespace cli
