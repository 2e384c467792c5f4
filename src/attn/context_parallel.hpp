#pragma once

#include "attn/error.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// Decode context parallelism: tokens are dealt to `dcp_size` ranks in turns of `interleave`. Writes how many
/// tokens of each sequence `rank` owns to `local_seq_lens` [seq_lens.size()].
///
/// Errors, before anything is written: count_mismatch, invalid_dcp_size, invalid_rank, invalid_interleave,
/// negative_seq_len. Source: vLLM's get_dcp_local_seq_lens.
[[nodiscard]] tl::expected<void, Error> dcp_local_seq_lens(std::span<const std::int32_t> seq_lens,
                                                           std::int32_t dcp_size, std::int32_t rank,
                                                           std::int32_t interleave,
                                                           std::span<std::int32_t> local_seq_lens) noexcept;

}  // namespace attn
