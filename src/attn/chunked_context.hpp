#pragma once

#include "attn/arena.hpp"
#include "attn/batch.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// A dense matrix in row-major order, seen from outside.
template <class T>
struct Rows {
  std::span<T> data;  ///< [num_rows * num_cols]
  std::int64_t num_cols = 0;

  [[nodiscard]] std::span<T> operator[](std::int64_t row) const noexcept {
    return data.subspan(static_cast<std::size_t>(row * num_cols), static_cast<std::size_t>(num_cols));
  }
};

/// How the extends' contexts are gathered from the paged cache: in `num_chunks` passes, each of which takes one
/// slice, possibly empty, of every extend's context. A slice that is not empty starts on a multiple of chunk_alignment.
/// C = num_chunks, E = num_extends.
struct ChunkedContext {
  std::int32_t num_chunks = 0;
  std::span<const std::int32_t> context_lens;         ///< [E] tokens to gather in all
  Rows<const std::int32_t> chunk_starts;              ///< [C][E] where a slice starts in its request's context
  Rows<const std::int32_t> seq_lens;                  ///< [C][E] tokens of a slice
  Rows<const std::int32_t> cu_seq_lens;               ///< [C][E + 1] slices' places in the workspace, from 0
  std::span<const std::int32_t> seq_tot;              ///< [C] tokens of a pass, at most workspace_tokens
  std::span<const std::int32_t> max_seq_lens;         ///< [C] longest slice of a pass
  std::span<const std::int64_t> token_start;          ///< [C + 1] where a pass begins in `token_to_batch_data`
  std::span<const std::int32_t> token_to_batch_data;  ///< [sum of context_lens] the extend of each gathered token

  /// The extend, counted from 0 inside the region, of each of pass `chunk`'s tokens. [seq_tot[chunk]]
  [[nodiscard]] std::span<const std::int32_t> token_to_batch(std::int32_t chunk) const noexcept {
    const auto c = static_cast<std::size_t>(chunk);
    return token_to_batch_data.subspan(static_cast<std::size_t>(token_start[c]),
                                       static_cast<std::size_t>(token_start[c + 1] - token_start[c]));
  }
};

/// The size of a plan, known before anything is written.
struct ChunkPlan {
  ChunkPolicy policy = ChunkPolicy::equal_share;
  std::int64_t num_extends = 0;
  std::int64_t num_chunks = 0;
  std::int64_t chunk_tokens = 0;  ///< tokens a pass takes of each extend (equal_share), or of all at most (packed, mla)
  std::int64_t alignment = 1;     ///< the batch's chunk_alignment
  std::int64_t total_tokens = 0;  ///< sum of contexts; 0 without a plan (none)

  [[nodiscard]] std::int64_t num_entries() const noexcept;
  [[nodiscard]] std::int64_t num_bytes() const noexcept;
};

/// Plans passes over the contexts of requests [first_extend, first_extend + num_extends) of a checked batch.
///
/// No context at all, or ChunkPolicy::none: num_chunks is 0, whatever the workspace. Otherwise workspace_too_small when
/// the workspace has no room for `chunk_alignment` tokens of each extend (equal_share) or of one (packed, mla);
/// capacity_exceeded above 2^31 - 1 passes.
/// Source: the context part of vLLM's AiterFlashAttentionMetadataBuilder.build; `packed` after vLLM PR #50613; `mla`
/// after its planner of MLA's chunked context.
[[nodiscard]] tl::expected<ChunkPlan, Error> plan_chunks(const Batch& batch, std::int32_t first_extend,
                                                         std::int32_t num_extends) noexcept;

/// Writes a plan's arrays into `arena`, which has room for `plan.num_bytes()`.
[[nodiscard]] ChunkedContext write_chunks(const Batch& batch, std::int32_t first_extend, const ChunkPlan& plan,
                                          Arena& arena) noexcept;

}  // namespace attn
