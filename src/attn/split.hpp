#pragma once

#include "attn/batch.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace attn {

/// The release of vLLM whose rules this library follows; where an older release answered otherwise, this one counts.
inline constexpr std::string_view upstream_release = "0.33.0";

/// Where decode, extend and prefill end in a batch that is ordered that way.
///
/// The decode region is the longest prefix with query_len <= decode_threshold; the extend region runs from there
/// to the first request that is longer and has no context (seq_len == query_len); prefills follow. Padding is in
/// no region, except in a batch without extends and prefills, where every row is a decode, and surplus tokens
/// (num_actual_tokens above the last offset) are the decodes': a captured graph needs its captured size.
struct Split {
  std::int32_t num_decodes = 0;
  std::int32_t num_extends = 0;
  std::int32_t num_prefills = 0;
  std::int32_t num_padding = 0;
  std::int32_t num_decode_tokens = 0;
  std::int32_t num_extend_tokens = 0;
  std::int32_t num_prefill_tokens = 0;
  std::int32_t num_padding_tokens = 0;  ///< surplus tokens, unless all rows are decodes; no request owns them

  friend bool operator==(const Split&, const Split&) = default;
};

/// Splits a batch in three. Classes come from `seq_lens_upper_bound` where given, else from `seq_lens`; a batch
/// whose requests are all decodes needs neither, and neither is read.
///
/// Errors: those of `check_offsets` and, unless decode-only, `check_lengths`; missing_seq_lens; unordered.
/// Source: vLLM's split_decodes_prefills_and_extends.
[[nodiscard]] tl::expected<Split, Error> split_decodes_extends_prefills(const Batch& batch) noexcept;

/// The same for a batch that has passed `check_offsets` and, where it has lengths, `check_lengths`.
[[nodiscard]] tl::expected<Split, Error> split_checked(const Batch& batch) noexcept;

/// Decodes first, everything else after them: padding rows and surplus tokens too, where not all rows are decodes.
struct DecodePrefillSplit {
  std::int32_t num_decodes = 0;
  std::int32_t num_prefills = 0;
  std::int32_t num_decode_tokens = 0;
  std::int32_t num_prefill_tokens = 0;

  friend bool operator==(const DecodePrefillSplit&, const DecodePrefillSplit&) = default;
};

/// What counts as a decode in a split in two, besides a query_len of at most decode_threshold.
struct DecodePrefillRule {
  /// Decodes are as long as the first row, or empty. Not asked for where decode_threshold is at most 1, no row is
  /// longer and `is_prefilling` is empty.
  bool require_uniform = false;
  /// [num_reqs] whether a request still computes its prompt: such a request is a prefill, however short. Empty: short
  /// rows are decodes (vLLM's treat_short_extends_as_decodes).
  std::span<const bool> is_prefilling{};
};

/// Splits a batch in two; no length is read. The decodes are the longest prefix of rows that are decodes by `rule`; a
/// first row longer than decode_threshold makes all rows prefills.
///
/// Errors: those of `check_offsets`; count_mismatch when `is_prefilling` has another size.
/// Source: vLLM's split_decodes_and_prefills.
[[nodiscard]] tl::expected<DecodePrefillSplit, Error> split_decodes_prefills(const Batch& batch,
                                                                             const DecodePrefillRule& rule) noexcept;

/// Requests [first, last).
struct RequestRange {
  std::int32_t first = 0;
  std::int32_t last = 0;

  friend bool operator==(const RequestRange&, const RequestRange&) = default;
};

/// Cuts prefills, in order, into the longest runs whose seq_lens sum to at most `workspace_tokens`. Writes the
/// runs, shifted by `request_offset`, to the front of `chunks` [>= seq_lens.size()] and returns their number.
///
/// Errors: negative_seq_len; invalid_workspace; workspace_too_small naming a request longer than the workspace;
/// capacity_exceeded when `chunks` is short; sum_overflow when offset + count leaves int32.
/// Nothing is written on an error. Source: vLLM's split_prefill_chunks.
[[nodiscard]] tl::expected<std::int32_t, Error> split_prefill_chunks(std::span<const std::int32_t> seq_lens,
                                                                     std::int32_t workspace_tokens,
                                                                     std::int32_t request_offset,
                                                                     std::span<RequestRange> chunks) noexcept;

}  // namespace attn
