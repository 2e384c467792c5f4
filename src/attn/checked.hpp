#pragma once

#include <cstdint>
#include <limits>

namespace attn {

inline constexpr std::int64_t int32_limit = std::numeric_limits<std::int32_t>::max();

/// `a / b` rounded up. a >= 0, b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace attn
