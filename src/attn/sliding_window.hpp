#pragma once

#include "attn/arena.hpp"
#include "attn/batch.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// The keys that extends see through a sliding window: of each, the last min(seq_len, query_len + window_left + 1),
/// fetched in one pass. E = num_extends.
struct SlidingWindow {
  std::span<const std::int32_t> seq_starts;      ///< [E] first position of the window
  std::span<const std::int32_t> seq_lens;        ///< [E] keys in the window
  std::span<const std::int32_t> cu_seq_lens;     ///< [E + 1] from 0
  std::span<const std::int32_t> token_to_batch;  ///< [total_tokens] the extend of each fetched key
  std::int32_t max_seq_len = 0;
  std::int32_t total_tokens = 0;
};

/// Keys the windows of requests [first_extend, first_extend + num_extends) of a checked batch hold in all. The
/// batch has a window_left. Errors: sum_overflow, naming the request.
[[nodiscard]] tl::expected<std::int32_t, Error> count_window_tokens(const Batch& batch, std::int32_t first_extend,
                                                                    std::int32_t num_extends) noexcept;

/// Entries and bytes `write_window` produces.
[[nodiscard]] std::int64_t window_entries(std::int64_t num_extends, std::int64_t total_tokens) noexcept;
[[nodiscard]] std::int64_t window_bytes(std::int64_t num_extends, std::int64_t total_tokens) noexcept;

/// Writes the windows into `arena`, which has room for `window_bytes`.
/// Source: the sliding-window part of vLLM's AiterFlashAttentionMetadataBuilder.build.
[[nodiscard]] SlidingWindow write_window(const Batch& batch, std::int32_t first_extend, std::int32_t num_extends,
                                         std::int32_t total_tokens, Arena& arena) noexcept;

}  // namespace attn
