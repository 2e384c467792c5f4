#pragma once

#include "attn/chunked_context.hpp"
#include "attn/sliding_window.hpp"
#include "attn/split.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace attn {

/// The requests [first_req, first_req + num_reqs) of one class. Without requests every number is 0.
struct Region {
  std::int32_t first_req = 0;
  std::int32_t num_reqs = 0;
  std::int32_t num_tokens = 0;  ///< of its requests, surplus tokens apart: query_start_loc[num_reqs]
  std::int32_t max_query_len = 0;
  std::int32_t min_query_len = 0;
  /// Never below a seq_len of the region: the largest exact length, else the largest bound, else the batch's
  /// max_seq_len. Padding has no length.
  std::int32_t max_seq_len = 0;
  /// Never above a seq_len of the region: the smallest exact length, else 0.
  std::int32_t min_seq_len = 0;
  std::span<const std::int32_t> query_start_loc;  ///< [num_reqs + 1] offsets inside the region, from 0
};

/// What attention needs to know of a batch. Every span points into the memory of the MetadataBuilder that made it
/// and holds until that builder's next `build` that succeeds, or its end; a moved builder takes its memory along.
struct Metadata {
  Split split;
  Region decode;
  Region extend;
  Region prefill;
  ChunkedContext context;               ///< of the extends; num_chunks == 0: there is no context to gather
  std::optional<SlidingWindow> window;  ///< of the extends, when the batch has a window_left
  /// Keys and values of all requests but padding: exact, else the sum of the bounds, else num_reqs * max_seq_len.
  std::int64_t num_kv_tokens = 0;
};

/// Turns batches into metadata on the CPU. Keeps its memory, so that a warm builder allocates nothing; not for use
/// from two threads at once.
class MetadataBuilder {
 public:
  /// Array entries a build may produce: 2^28 of them are 1 GiB, sixteen times a batch of 16M context tokens. What
  /// asks for more is a broken length, and gets an error instead of all memory.
  static constexpr std::int64_t default_max_entries = std::int64_t{1} << 28;

  /// A limit beyond 2^56, more than any address space holds, counts as 2^56.
  explicit MetadataBuilder(std::int64_t max_entries = default_max_entries) noexcept
      : max_entries_(max_entries < most_entries ? max_entries : most_entries) {}

  /// Linear in requests + entries produced. On an error the metadata of the last build still stands.
  ///
  /// Errors: those of `split_decodes_extends_prefills`, `check_lengths`, `plan_chunks`, `count_window_tokens`;
  /// capacity_exceeded above the builder's limit, for which a surplus token counts as an entry; out_of_memory.
  /// Source: vLLM's AiterFlashAttentionMetadataBuilder.build.
  [[nodiscard]] tl::expected<Metadata, Error> build(const Batch& batch) noexcept;

 private:
  /// Sizes in bytes then stay within 64 bits.
  static constexpr std::int64_t most_entries = std::int64_t{1} << 56;

  std::int64_t max_entries_;
  Arena arena_;
};

}  // namespace attn
