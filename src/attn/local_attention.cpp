#include "attn/local_attention.hpp"

#include "attn/checked.hpp"
#include "attn/metadata.hpp"

#include <algorithm>
#include <limits>
#include <optional>

namespace attn {
namespace {

std::optional<Error> check_shapes(const LocalAttentionInput& input) noexcept {
  if (input.block_size < 1) return Error{Error::invalid_block_size, -1, input.block_size, 1};
  if (input.attn_chunk_size < 1 || input.attn_chunk_size % input.block_size != 0)
    return Error{Error::invalid_attn_chunk_size, -1, input.attn_chunk_size, input.block_size};
  const auto num_reqs = static_cast<std::int64_t>(input.seq_lens.size());
  const auto num_offsets = static_cast<std::int64_t>(input.query_start_loc.size());
  if (num_offsets != num_reqs + 1) return Error{Error::offsets_count, -1, num_offsets, num_reqs + 1};
  const auto entries = static_cast<std::int64_t>(input.block_table.data.size());
  std::int64_t expected = 0;
  // Saturated: a wrong number of columns may leave 64 bits.
  if (__builtin_mul_overflow(num_reqs, std::max<std::int64_t>(input.block_table.num_cols, 0), &expected))
    expected = std::numeric_limits<std::int64_t>::max();
  if (entries != expected) return Error{Error::count_mismatch, -1, entries, expected};
  if (input.query_start_loc[0] != 0) return Error{Error::offsets_start, 0, input.query_start_loc[0], 0};
  return std::nullopt;
}

std::optional<Error> check_request(const LocalAttentionInput& input, std::size_t req) noexcept {
  const auto index = static_cast<std::int64_t>(req);
  const std::int32_t from = input.query_start_loc[req];
  const std::int32_t to = input.query_start_loc[req + 1];
  const std::int32_t seq_len = input.seq_lens[req];
  if (to < from) return Error{Error::offsets_decreasing, index + 1, to, from};
  if (to == from) return std::nullopt;
  if (seq_len < 0) return Error{Error::negative_seq_len, index, seq_len, 0};
  if (seq_len < to - from) return Error{Error::seq_len_below_query_len, index, seq_len, to - from};
  const std::int64_t columns = ceil_div(seq_len, input.block_size);
  if (columns > input.block_table.num_cols)
    return Error{Error::block_table_too_narrow, index, input.block_table.num_cols, columns};
  return std::nullopt;
}

/// Chunks [first, last] that the queries of a request touch; first > last when it has none.
struct ChunkRange {
  std::int64_t first = 0;
  std::int64_t last = -1;

  ChunkRange(const LocalAttentionInput& input, std::size_t req) noexcept {
    const std::int64_t query_len = input.query_start_loc[req + 1] - input.query_start_loc[req];
    if (query_len == 0) return;
    first = (input.seq_lens[req] - query_len) / input.attn_chunk_size;
    last = (input.seq_lens[req] - std::int64_t{1}) / input.attn_chunk_size;
  }
  [[nodiscard]] std::int64_t count() const noexcept { return last - first + 1; }
};

}  // namespace

tl::expected<LocalAttention, Error> LocalAttentionBuilder::build(const LocalAttentionInput& input) noexcept {
  if (auto error = check_shapes(input)) return tl::unexpected(*error);
  std::int64_t num_virtual = 0;
  for (std::size_t req = 0; req < input.seq_lens.size(); ++req) {
    if (auto error = check_request(input, req)) return tl::unexpected(*error);
    num_virtual += ChunkRange{input, req}.count();
  }
  const std::int64_t columns = input.attn_chunk_size / input.block_size;
  const std::int64_t limit = MetadataBuilder::default_max_entries;
  if (num_virtual > limit) return tl::unexpected(Error{Error::capacity_exceeded, -1, num_virtual, limit});
  // Each factor is below 2^31 here, so that the product cannot leave 64 bits.
  const std::int64_t entries = num_virtual * (columns + 3) + 1;
  if (entries > limit) return tl::unexpected(Error{Error::capacity_exceeded, -1, entries, limit});
  const std::int64_t bytes = Arena::bytes_for<std::int32_t>(num_virtual + 1) +
                             2 * Arena::bytes_for<std::int32_t>(num_virtual) +
                             Arena::bytes_for<std::int32_t>(num_virtual * columns);
  if (!arena_.reset(bytes)) return tl::unexpected(Error{Error::out_of_memory, -1, bytes, 0});

  const auto cu_seqlens_q = arena_.take<std::int32_t>(num_virtual + 1);
  const auto seqlens_k = arena_.take<std::int32_t>(num_virtual);
  const auto k_starts = arena_.take<std::int32_t>(num_virtual);
  const auto blocks = arena_.take<std::int32_t>(num_virtual * columns);
  cu_seqlens_q[0] = 0;
  std::size_t v = 0;
  for (std::size_t req = 0; req < input.seq_lens.size(); ++req) {
    const std::int64_t seq_len = input.seq_lens[req];
    const std::int64_t context = seq_len - (input.query_start_loc[req + 1] - input.query_start_loc[req]);
    const ChunkRange chunks{input, req};
    for (std::int64_t chunk = chunks.first; chunk <= chunks.last; ++chunk, ++v) {
      const std::int64_t begin = chunk * input.attn_chunk_size;
      const std::int64_t end = std::min(begin + input.attn_chunk_size, seq_len);
      k_starts[v] = static_cast<std::int32_t>(begin);
      seqlens_k[v] = static_cast<std::int32_t>(end - begin);
      cu_seqlens_q[v + 1] = cu_seqlens_q[v] + static_cast<std::int32_t>(end - std::max(begin, context));
      const auto table = input.block_table[static_cast<std::int64_t>(req)];
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t column = std::min(begin / input.block_size + c, input.block_table.num_cols - 1);
        blocks[v * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)] =
            table[static_cast<std::size_t>(column)];
      }
    }
  }
  return LocalAttention{cu_seqlens_q, seqlens_k, k_starts, {blocks, columns}};
}

}  // namespace attn
