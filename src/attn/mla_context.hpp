#pragma once

#include "attn/arena.hpp"
#include "attn/chunked_context.hpp"
#include "attn/error.hpp"
#include "attn/split.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// Prefills of an MLA layer (multi-head latent attention), whose contexts are gathered chunk by chunk. P = num_reqs.
struct MlaContextInput {
  std::span<const std::int32_t> query_start_loc;  ///< [P + 1] from 0, never falling
  std::span<const std::int32_t> context_lens;     ///< [P] tokens in the KV cache, of all ranks
  std::int32_t workspace_tokens = 0;              ///< context tokens one chunk can gather, on all ranks together
  std::int32_t block_size = 1;                    ///< tokens of a KV block: a chunk starts on one
  std::int32_t dcp_size = 1;                      ///< ranks of decode context parallelism
  std::int32_t interleave = 1;                    ///< tokens that a rank gets in turn
};

/// One chunk: slices of the contexts of consecutive requests. Only the first may have begun in an earlier chunk, and
/// only the last may go on in a later one.
struct MlaChunk {
  RequestRange requests;                    ///< whose contexts it gathers
  RequestRange query_tokens;                ///< [first, last) the query tokens of those requests
  bool is_continuation = false;             ///< the first slice does not start at 0
  std::int32_t continuation_token_end = 0;  ///< where the query tokens of the first request end
  std::int32_t max_query_len = 0;
  std::int32_t max_seq_len = 0;               ///< longest slice
  std::int32_t num_context_tokens = 0;        ///< of all slices
  std::int32_t num_local_context_tokens = 0;  ///< of all slices on a rank, padded to whole turns
  // Where its entries begin in the arrays of MlaContext.
  std::int64_t first_slice = 0;
  std::int64_t first_token = 0;
  std::int64_t first_local_token = 0;
};

/// The chunks of a batch. C chunks have S slices in all; entries of a chunk stand together. Offsets are those of a
/// chunk alone, from 0, and have one entry more than the chunk has slices: chunk c's begin at chunks[c].first_slice +
/// c.
struct MlaContext {
  std::span<const MlaChunk> chunks;               ///< [C]
  std::span<const std::int32_t> starts;           ///< [S] where a slice starts in the whole context; on the alignment
  std::span<const std::int32_t> seq_lens;         ///< [S] tokens of a slice
  std::span<const std::int32_t> cu_seq_lens;      ///< [S + C] offsets of the slices
  std::span<const std::int32_t> query_start_loc;  ///< [S + C] offsets of the requests' query tokens
  std::span<const std::int32_t> token_to_seq;     ///< [sum of contexts] the slice of each token, counted in its chunk
  // With several ranks, else empty.
  std::span<const std::int32_t> local_starts;        ///< [S] the start on a rank. Not always on a block, as in vLLM
  std::span<const std::int32_t> local_seq_lens;      ///< [S] tokens of a slice on a rank, padded to whole turns
  std::span<const std::int32_t> cu_local_seq_lens;   ///< [S + C] offsets of those
  std::span<const std::int32_t> local_token_to_seq;  ///< [sum of local_seq_lens] as token_to_seq
  Rows<const std::int32_t> local_context_lens;       ///< [P][dcp_size] tokens of a whole context that each rank has

  /// Entries of chunk `c` in an array of slices, and in one of their offsets.
  [[nodiscard]] std::span<const std::int32_t> slices_of(std::size_t c, std::span<const std::int32_t> of_slices) const;
  [[nodiscard]] std::span<const std::int32_t> offsets_of(std::size_t c, std::span<const std::int32_t> of_offsets) const;
};

/// Plans the chunks; memory and lifetimes as with MetadataBuilder.
class MlaContextBuilder {
 public:
  /// Linear in requests + entries produced. Without any context there is no chunk, whatever the workspace.
  ///
  /// Slices start on multiples of block_size, with several ranks of the least common multiple of it and dcp_size *
  /// interleave, so that a cut gives each rank as much.
  ///
  /// Errors, the last result then still stands: invalid_block_size, invalid_dcp_size, invalid_interleave,
  /// invalid_workspace, offsets_count, offsets_start, offsets_decreasing, negative_seq_len, workspace_too_small (below
  /// the alignment), capacity_exceeded, out_of_memory. Source: vLLM's planner of MLA's chunked context.
  [[nodiscard]] tl::expected<MlaContext, Error> build(const MlaContextInput& input) noexcept;

 private:
  Arena arena_;
};

}  // namespace attn
