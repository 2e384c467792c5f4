#pragma once

#include "attn/error.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace attn {

/// How the extends' contexts are cut into chunks that fit the workspace. a = chunk_alignment.
enum class ChunkPolicy : std::uint8_t {
  /// Each extend gets workspace_tokens / num_extends tokens a chunk, rounded down to a multiple of a (vLLM's AITER
  /// builder).
  equal_share,
  /// Contexts are laid end to end, each from a multiple of a on, and cut every workspace_tokens, rounded down to a
  /// multiple of a. With an alignment of 1 these are the fewest possible chunks.
  packed,
  /// Requests fill a chunk in order; a context that does not fit whole is cut at the largest multiple of a that does,
  /// and
  /// ends its chunk; so does an empty context (vLLM's planner for MLA). On the CPU only.
  mla,
  none,  ///< no chunks, and no workspace that could be too small: for layers that all have a window
};
inline constexpr int num_chunk_policies = static_cast<int>(ChunkPolicy::none) + 1;

/// The policy's name as it is written in the source, `equal_share` for one.
[[nodiscard]] std::string_view name(ChunkPolicy policy) noexcept;

/// What stays the same from step to step.
struct Config {
  std::int32_t decode_threshold = 1;      ///< longest query still called a decode: 1 + draft tokens. >= 0
  std::int32_t workspace_tokens = 32768;  ///< context tokens one chunk can gather. >= 0
  std::optional<std::int32_t>
      window_left;  ///< sliding window: keys to the left of a query token, itself not counted. >= 0
  ChunkPolicy chunk_policy = ChunkPolicy::equal_share;
  /// Every slice of a context that is not empty starts on a multiple of it. A kernel that divides a start by the page size of the KV
  /// cache needs that page size here, or it reads other tokens. >= 1
  std::int32_t chunk_alignment = 1;

  friend bool operator==(const Config&, const Config&) = default;
};

/// One step's requests, as a scheduler hands them over: views of host arrays that the caller owns and keeps
/// alive during a call. Names are those of vLLM's CommonAttentionMetadata.
///
/// A default-constructed Batch is the empty batch. Requests with query_len 0 behind the last request with
/// query_len > 0 are padding: their lengths are never read, whatever stale values they carry.
struct Batch {
  std::int32_t num_reqs = 0;
  std::span<const std::int32_t>
      query_start_loc;                     ///< [num_reqs + 1], from 0, never falling; may be empty without requests
  std::span<const std::int32_t> seq_lens;  ///< [num_reqs], exact; empty: unknown to the host
  std::span<const std::int32_t> seq_lens_upper_bound;  ///< [num_reqs], never below exact; empty: absent
  /// Tokens the step's kernels run over: query_start_loc[num_reqs], or more in a step that is padded to a captured
  /// size.
  std::int32_t num_actual_tokens = 0;
  std::int32_t max_query_len = 0;  ///< upper bound of every query_len
  std::int32_t max_seq_len = 0;    ///< upper bound of every length given
  Config config;

  /// Query tokens of request i. Only after `check_offsets`, 0 <= i < num_reqs.
  [[nodiscard]] std::int32_t query_len(std::int32_t i) const noexcept {
    const auto at = static_cast<std::size_t>(i);
    return query_start_loc[at + 1] - query_start_loc[at];
  }
  /// The lengths that classes come from: the bound where there is one, else the exact ones. Empty: neither.
  [[nodiscard]] std::span<const std::int32_t> class_seq_lens() const noexcept {
    return seq_lens_upper_bound.empty() ? seq_lens : seq_lens_upper_bound;
  }
  /// The lengths that contexts come from: the exact ones where given, else the bound. Empty: neither.
  [[nodiscard]] std::span<const std::int32_t> best_seq_lens() const noexcept {
    return seq_lens.empty() ? seq_lens_upper_bound : seq_lens;
  }
};

/// Tokens of a request that are in the KV cache already. Cross-attention has seq_len < query_len, and no context.
[[nodiscard]] constexpr std::int32_t context_len(std::int32_t query_len, std::int32_t seq_len) noexcept {
  return seq_len > query_len ? seq_len - query_len : 0;
}

/// Checks configuration, counts, offsets and scalars: everything that can be checked without reading a length.
[[nodiscard]] std::optional<Error> check_offsets(const Batch& batch) noexcept;

/// Checks every length of a request that is not padding. Needs `check_offsets` to have passed; spans may be empty.
[[nodiscard]] std::optional<Error> check_lengths(const Batch& batch) noexcept;

/// Tokens above the last offset, which no request owns. Needs `check_offsets`.
[[nodiscard]] std::int32_t num_surplus_tokens(const Batch& batch) noexcept;

/// Requests up to and with the last one that has query tokens; those behind it are padding. Needs `check_offsets`.
[[nodiscard]] std::int32_t num_unpadded_reqs(const Batch& batch) noexcept;

}  // namespace attn
