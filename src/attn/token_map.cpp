#include "attn/token_map.hpp"

#include <algorithm>

namespace attn {

std::int32_t accumulate_lens(std::span<const std::int32_t> lens, std::span<std::int32_t> cumulative) noexcept {
  std::int32_t sum = 0;
  std::int32_t longest = 0;
  cumulative[0] = 0;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    sum += lens[i];
    longest = std::max(longest, lens[i]);
    cumulative[i + 1] = sum;
  }
  return longest;
}

void map_tokens(std::span<const std::int32_t> cumulative, std::int32_t* owners) noexcept {
  for (std::size_t i = 0; i + 1 < cumulative.size(); ++i)
    std::fill(owners + cumulative[i], owners + cumulative[i + 1], static_cast<std::int32_t>(i));
}

}  // namespace attn
