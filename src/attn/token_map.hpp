#pragma once

#include <cstdint>
#include <span>

namespace attn {

/// Writes the cumulative lengths of `lens` [n] to `cumulative` [n + 1], from 0, and returns the longest, 0 for
/// none. The sum fits int32.
std::int32_t accumulate_lens(std::span<const std::int32_t> lens, std::span<std::int32_t> cumulative) noexcept;

/// Writes to `owners` [cumulative.back()], for each token of the ranges that `cumulative` [n + 1] cuts, which
/// range it is in: cumulative[owner] <= token < cumulative[owner + 1].
void map_tokens(std::span<const std::int32_t> cumulative, std::int32_t* owners) noexcept;

}  // namespace attn
