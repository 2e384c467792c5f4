#pragma once

#include "attn/arena.hpp"
#include "attn/chunked_context.hpp"
#include "attn/error.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// Input of chunked local attention: a query at position p sees the keys of its own chunk, from
/// p / attn_chunk_size * attn_chunk_size up to p.
struct LocalAttentionInput {
  std::int32_t attn_chunk_size = 0;               ///< positions of a chunk; a multiple of block_size
  std::int32_t block_size = 0;                    ///< tokens of a KV block
  std::span<const std::int32_t> query_start_loc;  ///< [num_reqs + 1]
  std::span<const std::int32_t> seq_lens;         ///< [num_reqs], not below the query lengths
  Rows<const std::int32_t> block_table;           ///< [num_reqs][num_cols] block of each block_size positions
};

/// One virtual request for each chunk that a request's queries touch; requests without queries have none. V in all.
struct LocalAttention {
  std::span<const std::int32_t> cu_seqlens_q;  ///< [V + 1] from 0
  std::span<const std::int32_t> seqlens_k;     ///< [V] keys, from the chunk's start to its last query
  std::span<const std::int32_t> k_starts;      ///< [V] position of the chunk's start
  Rows<const std::int32_t>
      block_table;  ///< [V][attn_chunk_size / block_size]; behind the request's table its last column
};

/// Makes virtual batches; memory and lifetimes as with MetadataBuilder.
class LocalAttentionBuilder {
 public:
  /// Errors, the last result then still stands: invalid_block_size, invalid_attn_chunk_size, offsets_count,
  /// offsets_start, offsets_decreasing, count_mismatch (block table), negative_seq_len, seq_len_below_query_len,
  /// block_table_too_narrow, capacity_exceeded, out_of_memory. Source: vLLM's make_local_attention_virtual_batches.
  [[nodiscard]] tl::expected<LocalAttention, Error> build(const LocalAttentionInput& input) noexcept;

 private:
  Arena arena_;
};

}  // namespace attn
