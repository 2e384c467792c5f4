#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include "attn/context_parallel.hpp"
#include "attn/local_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace properties {
namespace {

Verdict compare_region(std::string_view name, const attn::Region& found, const naive::Region& expected) {
  attn::Region same;
  same.first_req = found.first_req;  // S1 judges where regions begin
  same.num_reqs = expected.num_reqs;
  same.num_tokens = static_cast<std::int32_t>(expected.num_tokens);
  same.max_query_len = expected.max_query_len;
  same.min_query_len = expected.min_query_len;
  same.max_seq_len = expected.max_seq_len;
  same.min_seq_len = expected.min_seq_len;
  same.query_start_loc = expected.query_start_loc;
  return compare(name, found, same);
}

/// The tokens a pass gathers, read off its slices and its token map.
Verdict compare_pass(const attn::ChunkedContext& context, std::int32_t chunk, const std::vector<naive::ContextToken>& expected) {
  const auto starts = context.chunk_starts[chunk];
  const auto cumulative = context.cu_seq_lens[chunk];
  const auto owners = context.token_to_batch(chunk);
  if (owners.size() != expected.size())
    return Difference{fmt::format("pass {}", chunk), fmt::format("{} tokens, expected {}", owners.size(), expected.size())};
  for (std::size_t token = 0; token < owners.size(); ++token) {
    const auto owner = static_cast<std::size_t>(owners[token]);
    const std::int32_t position = starts[owner] + static_cast<std::int32_t>(token) - cumulative[owner];
    if (expected[token] == naive::ContextToken{owners[token], position}) continue;
    return Difference{fmt::format("pass {}, token {}", chunk, token),
                      fmt::format("is extend {} position {}, expected extend {} position {}", owner, position,
                                  expected[token].extend, expected[token].position)};
  }
  return std::nullopt;
}

/// A block table in which every block has a number of its own.
std::vector<std::int32_t> numbered_blocks(std::int64_t num_reqs, std::int64_t num_cols) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_reqs * num_cols));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
  return blocks;
}

/// The keys a query must see, one by one, against those its virtual request has.
Verdict check_local_query(const attn::LocalAttention& local, std::size_t v, std::int64_t position, bool is_last,
                          const attn::LocalAttentionInput& input, std::size_t req) {
  const std::int64_t chunk_begin = position - position % input.attn_chunk_size;
  const std::string_view what = "local attention";
  if (auto verdict = compare(what, local.k_starts[v], chunk_begin)) return verdict;
  if (is_last)
    if (auto verdict = compare(what, std::int64_t{local.k_starts[v]} + local.seqlens_k[v], position + 1)) return verdict;
  const auto row = local.block_table[static_cast<std::int64_t>(v)];
  for (std::int64_t key = chunk_begin; key <= position; ++key) {
    const auto column = static_cast<std::size_t>((key - chunk_begin) / input.block_size);
    const auto block = static_cast<std::size_t>(key / input.block_size);
    if (row[column] != input.block_table[static_cast<std::int64_t>(req)][block])
      return Difference{fmt::format("virtual request {}, key {}", v, key),
                        fmt::format("is looked up in block {}", row[column])};
  }
  return std::nullopt;
}

}  // namespace

Verdict metadata_equals_the_naive_one(const Built& built) {
  const naive::Metadata expected = naive::build(built.batch, built.rows);
  const attn::Metadata& found = built.metadata;
  if (auto v = compare_region("decode", found.decode, expected.decode)) return v;
  if (auto v = compare_region("extend", found.extend, expected.extend)) return v;
  if (auto v = compare_region("prefill", found.prefill, expected.prefill)) return v;
  if (auto v = compare("num_padding", found.split.num_padding, expected.num_padding)) return v;
  if (auto v = compare("num_kv_tokens", found.num_kv_tokens, expected.num_kv_tokens)) return v;
  if (auto v = compare("num_chunks", found.context.num_chunks, static_cast<std::int64_t>(expected.passes.size()))) return v;
  for (std::int32_t chunk = 0; chunk < found.context.num_chunks; ++chunk)
    if (auto v = compare_pass(found.context, chunk, expected.passes[static_cast<std::size_t>(chunk)])) return v;
  if (!found.window) return std::nullopt;
  for (std::size_t e = 0; e < expected.windows.size(); ++e) {
    if (found.window->seq_starts[e] == expected.windows[e].start && found.window->seq_lens[e] == expected.windows[e].len) continue;
    return Difference{fmt::format("window of extend {}", e),
                      fmt::format("{} tokens from {}, expected {} from {}", found.window->seq_lens[e],
                                  found.window->seq_starts[e], expected.windows[e].len, expected.windows[e].start)};
  }
  return std::nullopt;
}

Verdict local_attention_shows_each_query_its_chunk(const Built& built) {
  constexpr std::int64_t most_keys = 4096;  // keys are counted one by one for every query
  const auto& rows = built.rows;
  std::int64_t keys = 0;
  for (const naive::Row& row : rows) {
    if (row.query_len > 0 && (!row.seq_len || *row.seq_len < row.query_len)) return std::nullopt;  // not self-attention
    if (row.query_len > 0) keys += *row.seq_len;
  }
  if (keys > most_keys) return std::nullopt;

  attn::LocalAttentionInput input;
  input.block_size = 1 + built.batch.config.decode_threshold % 4;
  input.attn_chunk_size = input.block_size * (1 + built.batch.num_reqs % 5);
  const std::vector<std::int32_t> no_requests{0};
  input.query_start_loc = rows.empty() ? std::span<const std::int32_t>{no_requests} : built.batch.query_start_loc;
  std::vector<std::int32_t> seq_lens;
  std::int64_t longest = 1;
  for (const naive::Row& row : rows) {
    seq_lens.push_back(row.query_len > 0 ? *row.seq_len : -1);  // never read
    longest = std::max<std::int64_t>(longest, seq_lens.back());
  }
  input.seq_lens = seq_lens;
  const std::int64_t num_cols = (longest + input.block_size - 1) / input.block_size;
  const auto blocks = numbered_blocks(built.batch.num_reqs, num_cols);
  input.block_table = {blocks, num_cols};
  attn::LocalAttentionBuilder builder;
  const auto local = builder.build(input);
  if (!local) return Difference{"local attention", attn::message(local.error())};

  for (std::size_t i = 0; i + 1 < local->cu_seqlens_q.size(); ++i)
    if (local->cu_seqlens_q[i + 1] <= local->cu_seqlens_q[i])
      return Difference{fmt::format("virtual request {}", i), "has no query"};
  std::size_t v = 0;
  std::int32_t query = 0;
  for (std::size_t req = 0; req < rows.size(); ++req) {
    for (std::int64_t position = rows[req].context; position < rows[req].context + rows[req].query_len; ++position, ++query) {
      while (v + 1 < local->cu_seqlens_q.size() && local->cu_seqlens_q[v + 1] <= query) ++v;
      if (v >= local->seqlens_k.size()) return Difference{fmt::format("query {}", query), "is in no virtual request"};
      if (auto verdict = check_local_query(*local, v, position, local->cu_seqlens_q[v + 1] == query + 1, input, req)) return verdict;
    }
  }
  return compare("queries in virtual requests", local->cu_seqlens_q.back(), query);
}

Verdict every_token_has_one_context_parallel_rank(const Built& built) {
  constexpr std::int32_t longest_dealt = 4096;  // tokens are dealt one by one
  std::vector<std::int32_t> seq_lens;
  for (const naive::Row& row : built.rows)
    if (row.seq_len && *row.seq_len >= 0) seq_lens.push_back(*row.seq_len % longest_dealt);
  const std::int32_t dcp_size = 1 + built.batch.num_reqs % 4;
  const std::int32_t interleave = 1 + built.batch.config.decode_threshold % 5;

  std::array<std::vector<std::int32_t>, 4> local;
  for (std::int32_t rank = 0; rank < dcp_size; ++rank) {
    auto& of_rank = local[static_cast<std::size_t>(rank)];
    of_rank.assign(seq_lens.size(), -1);
    const auto done = attn::dcp_local_seq_lens(seq_lens, dcp_size, rank, interleave, of_rank);
    if (!done) return Difference{"context parallel", attn::message(done.error())};
  }
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    std::array<std::int32_t, 4> dealt{};
    for (std::int32_t token = 0; token < seq_lens[i]; ++token) ++dealt[static_cast<std::size_t>(token / interleave % dcp_size)];
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(dcp_size); ++rank)
      if (local[rank][i] != dealt[rank])
        return Difference{fmt::format("sequence {}, rank {}", i, rank), fmt::format("{} tokens, expected {}", local[rank][i], dealt[rank])};
  }
  return std::nullopt;
}

}  // namespace properties
