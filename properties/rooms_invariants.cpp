#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include "attn/context_parallel.hpp"
#include "attn/local_attention.hpp"
#include "attn/reorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace properties {
namespace {

using attn::Error;

/// A block table in which every block has a number of its own.
std::vector<std::int32_t> numbered_blocks(std::int64_t num_reqs, std::int64_t num_cols) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_reqs * num_cols));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
  return blocks;
}

/// Every column of a virtual request's row, those after the end of the table too: kernels fetch whole rows, so that
/// each has to be a block of the request, and the last one is the nearest there is.
Verdict check_local_row(std::span<const std::int32_t> row, std::size_t v, std::int64_t chunk_begin,
                        const attn::LocalAttentionInput& input, std::size_t req) {
  const auto blocks = input.block_table[static_cast<std::int64_t>(req)];
  if (auto verdict = compare_at("virtual request", static_cast<std::int64_t>(v), "columns",
                                static_cast<std::int64_t>(row.size()), input.attn_chunk_size / input.block_size))
    return verdict;
  std::int64_t key = chunk_begin;
  for (const std::int32_t block : row) {
    const auto at = static_cast<std::size_t>(key / input.block_size);
    const std::int32_t expected = at < blocks.size() ? blocks[at] : blocks.back();
    if (block != expected)
      return Difference{fmt::format("virtual request {}, column of key {}", v, key),
                        fmt::format("block {}, expected {}", block, expected)};
    key += input.block_size;
  }
  return std::nullopt;
}

/// The keys a query must see, one by one, against those its virtual request has.
Verdict check_local_query(const attn::LocalAttention& local, std::size_t v, std::int64_t position, bool is_last,
                          const attn::LocalAttentionInput& input, std::size_t req) {
  const std::int64_t chunk_begin = position - position % input.attn_chunk_size;
  const auto index = static_cast<std::int64_t>(v);
  if (auto verdict = compare_at("virtual request", index, "k_starts", local.k_starts[v], chunk_begin)) return verdict;
  if (is_last)
    if (auto verdict = compare_at("virtual request", index, "end of keys",
                                  std::int64_t{local.k_starts[v]} + local.seqlens_k[v], position + 1))
      return verdict;
  const auto row = local.block_table[static_cast<std::int64_t>(v)];
  for (std::int64_t key = chunk_begin; key <= position; ++key) {
    const auto column = static_cast<std::size_t>((key - chunk_begin) / input.block_size);
    const auto block = static_cast<std::size_t>(key / input.block_size);
    if (row[column] != input.block_table[static_cast<std::int64_t>(req)][block])
      return Difference{fmt::format("virtual request {}, key {}", v, key),
                        fmt::format("is looked up in block {}", row[column])};
  }
  return check_local_row(row, v, chunk_begin, input, req);
}

/// What a room said to input it has to refuse.
template <class Result>
Verdict expect_refused(std::string_view what, const Result& result, const Error& expected) {
  if (!result && result.error() == expected) return std::nullopt;
  return Difference{
      std::string{what},
      fmt::format("{}, expected {}", result ? "accepted" : attn::message(result.error()), attn::message(expected))};
}

constexpr std::int32_t untouched = 123456789;  // no room writes this

constexpr std::int32_t narrow(std::int64_t small) { return static_cast<std::int32_t>(small); }

/// Spans a room may not have written to.
Verdict expect_untouched(std::string_view what, std::span<const std::int32_t> written) {
  if (std::all_of(written.begin(), written.end(), [](std::int32_t entry) { return entry == untouched; }))
    return std::nullopt;
  return Difference{std::string{what}, "wrote to its output before it refused"};
}

/// What the builder refuses before it splits, the split refuses by itself.
Verdict three_way_refuses(const Built& built) {
  const auto refused = [&](auto change, const Error& expected) {
    attn::Batch bad = built.batch;
    change(bad);
    return expect_refused("three-way split", attn::split_decodes_extends_prefills(bad), expected);
  };
  if (auto v = refused([](auto& bad) { bad.max_query_len = -2; }, {Error::negative_max_query_len, -1, -2, 0})) return v;
  const auto rows = std::span{built.rows};
  const bool reads_lengths = std::any_of(rows.begin(), rows.end(), [&](const naive::Row& row) {
    return row.query_len > built.batch.config.decode_threshold;
  });
  if (!reads_lengths || built.batch.seq_lens.empty()) return std::nullopt;
  std::vector<std::int32_t> lens(built.batch.seq_lens.begin(), built.batch.seq_lens.end());
  lens[0] = -3;  // before any row that is long, so that the row is no padding
  return refused([&](auto& bad) { bad.seq_lens = lens; }, {Error::negative_seq_len, 0, -3, 0});
}

/// Token counts below the last offset, and flags for another number of requests.
Verdict two_way_refuses(const Built& built) {
  attn::Batch batch = built.batch;
  const std::int64_t last = batch.query_start_loc.empty() ? 0 : batch.query_start_loc.back();
  for (const std::int64_t tokens : {last - 1, std::int64_t{-1}}) {
    batch.num_actual_tokens = static_cast<std::int32_t>(tokens);
    for (const bool require_uniform : {false, true})
      if (auto v = expect_refused("two-way split", attn::split_decodes_prefills(batch, {require_uniform, {}}),
                                  {Error::token_count_too_small, -1, tokens, last}))
        return v;
  }
  const auto num_flags = static_cast<std::size_t>(built.batch.num_reqs) + 1;
  const auto flags = std::make_unique<bool[]>(num_flags);
  return expect_refused("two-way split", attn::split_decodes_prefills(built.batch, {false, {flags.get(), num_flags}}),
                        {Error::count_mismatch, -1, built.batch.num_reqs + std::int64_t{1}, built.batch.num_reqs});
}

Verdict prefill_chunks_refuse(std::int64_t count) {
  const std::vector<std::int32_t> lens(static_cast<std::size_t>(count), 1);
  std::vector<attn::RequestRange> chunks(lens.size(), {untouched, untouched});
  if (auto v = expect_refused("prefill chunks",
                              attn::split_prefill_chunks(lens, 9, 0, std::span{chunks}.first(lens.size() - 1)),
                              {Error::capacity_exceeded, -1, count, count - 1}))
    return v;
  if (auto v = expect_refused("prefill chunks", attn::split_prefill_chunks(lens, 9, 2147483647, chunks),
                              {Error::sum_overflow, count, count + 2147483647, 2147483647}))
    return v;
  if (auto v = expect_refused("prefill chunks", attn::split_prefill_chunks(lens, narrow(-count), 0, chunks),
                              {Error::invalid_workspace, -1, -count, 0}))
    return v;
  std::vector<std::int32_t> bad = lens;
  bad.back() = -3;
  if (auto v = expect_refused("prefill chunks", attn::split_prefill_chunks(bad, 9, 0, chunks),
                              {Error::negative_seq_len, count - 1, -3, 0}))
    return v;
  bad.back() = 10;
  if (auto v = expect_refused("prefill chunks", attn::split_prefill_chunks(bad, 9, 0, chunks),
                              {Error::workspace_too_small, count - 1, 9, 10}))
    return v;
  for (const attn::RequestRange& chunk : chunks)
    if (!(chunk == attn::RequestRange{untouched, untouched}))
      return Difference{"prefill chunks", "wrote to its output before it refused"};
  return std::nullopt;
}

Verdict reordering_refuses(std::int64_t count) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), 1);
  std::vector<std::int32_t> order(tokens.size(), untouched);
  const auto too_few = std::span<const std::int32_t>{tokens}.first(tokens.size() - 1);
  if (auto v = expect_refused("reorder", attn::reorder_batch(tokens, too_few, {}, 1, order),
                              {Error::count_mismatch, -1, count - 1, count}))
    return v;
  // No prompt lengths at all are none given.
  if (!too_few.empty())
    if (auto v = expect_refused("reorder, prompts", attn::reorder_batch(tokens, tokens, too_few, 1, order),
                                {Error::count_mismatch, -1, count - 1, count}))
      return v;
  if (auto v = expect_refused("reorder",
                              attn::reorder_batch(tokens, tokens, {}, 1, std::span{order}.first(order.size() - 1)),
                              {Error::count_mismatch, -1, count - 1, count}))
    return v;
  if (auto v = expect_refused("reorder, threshold", attn::reorder_batch(tokens, tokens, {}, narrow(-count), order),
                              {Error::invalid_decode_threshold, -1, -count, 0}))
    return v;
  std::vector<std::int32_t> negative = tokens;
  negative.back() = -4;
  const Error negative_count{Error::negative_token_count, count - 1, -4, 0};
  if (auto v = expect_refused("reorder, scheduled tokens", attn::reorder_batch(negative, tokens, {}, 1, order),
                              negative_count))
    return v;
  if (auto v = expect_refused("reorder, computed tokens", attn::reorder_batch(tokens, negative, {}, 1, order),
                              negative_count))
    return v;
  if (auto v = expect_refused("reorder, prompt tokens", attn::reorder_batch(tokens, tokens, negative, 1, order),
                              negative_count))
    return v;
  return expect_untouched("reorder", order);
}

Verdict context_parallel_refuses(std::int64_t count) {
  std::vector<std::int32_t> lens(static_cast<std::size_t>(count), 5);
  std::vector<std::int32_t> local(lens.size(), untouched);
  const auto least = narrow(1 - count);  // 0, or below
  if (auto v = expect_refused("context parallel", attn::dcp_local_seq_lens(lens, 2, 2, 1, local),
                              {Error::invalid_rank, -1, 2, 2}))
    return v;
  if (auto v = expect_refused("context parallel", attn::dcp_local_seq_lens(lens, 2, least - 1, 1, local),
                              {Error::invalid_rank, -1, least - 1, 2}))
    return v;
  if (auto v = expect_refused("context parallel", attn::dcp_local_seq_lens(lens, least, 0, 1, local),
                              {Error::invalid_dcp_size, -1, least, 1}))
    return v;
  if (auto v = expect_refused("context parallel", attn::dcp_local_seq_lens(lens, 2, 1, least, local),
                              {Error::invalid_interleave, -1, least, 1}))
    return v;
  if (auto v = expect_refused("context parallel",
                              attn::dcp_local_seq_lens(lens, 2, 0, 1, std::span{local}.first(lens.size() - 1)),
                              {Error::count_mismatch, -1, count - 1, count}))
    return v;
  lens.back() = -6;
  if (auto v = expect_refused("context parallel", attn::dcp_local_seq_lens(lens, 2, 0, 1, local),
                              {Error::negative_seq_len, count - 1, -6, 0}))
    return v;
  return expect_untouched("context parallel", local);
}

/// One request of six tokens, two of them new, over a table of three blocks of two.
struct SmallLocal {
  std::array<std::int32_t, 2> offsets{0, 2};
  std::array<std::int32_t, 1> lens{6};
  std::array<std::int32_t, 3> blocks{7, 8, 9};
  attn::LocalAttentionInput input{4, 2, offsets, lens, {blocks, 3}};
};

/// Offsets and lengths that a request may not have.
Verdict local_attention_refuses_requests(const SmallLocal& good, attn::LocalAttentionBuilder& builder) {
  const auto refused = [&](std::span<const std::int32_t> offsets, std::int32_t seq_len, const Error& expected) {
    attn::LocalAttentionInput bad = good.input;
    bad.query_start_loc = offsets;
    bad.seq_lens = {&seq_len, 1};
    return expect_refused("local attention", builder.build(bad), expected);
  };
  constexpr std::array<std::int32_t, 2> late{1, 2};
  constexpr std::array<std::int32_t, 2> falling{0, -2};
  if (auto v = refused(std::span{good.offsets}.first(1), 6, {Error::offsets_count, -1, 1, 2})) return v;
  if (auto v = refused(late, 6, {Error::offsets_start, 0, 1, 0})) return v;
  if (auto v = refused(falling, 6, {Error::offsets_decreasing, 1, -2, 0})) return v;
  if (auto v = refused(good.offsets, -1, {Error::negative_seq_len, 0, -1, 0})) return v;
  return refused(good.offsets, 1, {Error::seq_len_below_query_len, 0, 1, 2});
}

Verdict local_attention_refuses(std::int64_t count) {
  const SmallLocal small;
  const attn::LocalAttentionInput& good = small.input;
  const auto& blocks = small.blocks;
  attn::LocalAttentionBuilder builder;
  const auto before = builder.build(good);
  if (!before) return Difference{"local attention", attn::message(before.error())};
  if (auto v = local_attention_refuses_requests(small, builder)) return v;
  const auto refused = [&](auto change, const Error& expected) {
    attn::LocalAttentionInput bad = good;
    change(bad);
    return expect_refused("local attention", builder.build(bad), expected);
  };
  const auto least = narrow(1 - count);  // 0, or below
  if (auto v = refused([&](auto& bad) { bad.block_size = least; }, {Error::invalid_block_size, -1, least, 1})) return v;
  if (auto v = refused([&](auto& bad) { bad.attn_chunk_size = least; }, {Error::invalid_attn_chunk_size, -1, least, 2}))
    return v;
  if (auto v = refused([](auto& bad) { bad.attn_chunk_size = 5; }, {Error::invalid_attn_chunk_size, -1, 5, 2}))
    return v;
  if (auto v = refused([](auto& bad) { bad.block_table.num_cols = 4; }, {Error::count_mismatch, -1, 3, 4})) return v;
  if (auto v = refused(
          [&](auto& bad) {
            bad.block_table = {std::span{blocks}.first(2), 2};
          },
          {Error::block_table_too_narrow, 0, 2, 3}))
    return v;
  // One column more than the limit leaves beside the three numbers of a virtual request and the one more offset.
  constexpr std::int64_t limit = attn::MetadataBuilder::default_max_entries;
  constexpr std::int64_t one_too_many = limit + 1;
  constexpr std::int64_t columns = one_too_many - 3 - 1;
  if (auto v = refused([](auto& bad) { bad.attn_chunk_size = narrow(2 * columns); },
                       {Error::capacity_exceeded, -1, one_too_many, limit}))
    return v;
  constexpr std::int64_t many_columns = std::int64_t{1} << 62;
  if (auto v = refused([](auto& bad) { bad.block_table.num_cols = many_columns; },
                       {Error::count_mismatch, -1, 3, many_columns}))
    return v;
  attn::LocalAttentionBuilder other;
  const auto again = other.build(good);
  if (!again) return Difference{"local attention", attn::message(again.error())};
  if (auto v = compare("cu_seqlens_q after refusals", before->cu_seqlens_q, again->cu_seqlens_q)) return v;
  if (auto v = compare("seqlens_k after refusals", before->seqlens_k, again->seqlens_k)) return v;
  if (auto v = compare("k_starts after refusals", before->k_starts, again->k_starts)) return v;
  return compare("block_table after refusals", before->block_table.data, again->block_table.data);
}

/// Sequences as long as they are, in turns as long as a sequence: nobody deals these out one by one, but what the ranks
/// own adds up, and the first owns no less than the last.
Verdict ranks_share_long_sequences(const Built& built) {
  constexpr std::int32_t dcp_size = 3;
  for (const naive::Row& row : built.rows) {
    const std::int32_t seq_len = std::max(row.seq_len.value_or(0), 0);
    for (const std::int32_t interleave : {1, 1 + seq_len / 2, 2147483647}) {
      std::array<std::int32_t, dcp_size> local{};
      for (std::int32_t rank = 0; rank < dcp_size; ++rank) {
        const auto of_rank = std::span{local}.subspan(static_cast<std::size_t>(rank), 1);
        const auto done = attn::dcp_local_seq_lens({&seq_len, 1}, dcp_size, rank, interleave, of_rank);
        if (!done) return Difference{"context parallel", attn::message(done.error())};
      }
      const std::int64_t sum = std::int64_t{local[0]} + local[1] + local[2];
      if (sum != seq_len || local[0] < local[2])
        return Difference{fmt::format("sequence of {}, turns of {}", seq_len, interleave),
                          fmt::format("ranks own {}, {} and {}", local[0], local[1], local[2])};
    }
  }
  return std::nullopt;
}

}  // namespace

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
    for (std::int64_t position = rows[req].context; position < rows[req].context + rows[req].query_len;
         ++position, ++query) {
      while (v + 1 < local->cu_seqlens_q.size() && local->cu_seqlens_q[v + 1] <= query) ++v;
      if (v >= local->seqlens_k.size()) return Difference{fmt::format("query {}", query), "is in no virtual request"};
      if (auto verdict = check_local_query(*local, v, position, local->cu_seqlens_q[v + 1] == query + 1, input, req))
        return verdict;
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
  if (auto verdict = ranks_share_long_sequences(built)) return verdict;
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    std::array<std::int32_t, 4> dealt{};
    for (std::int32_t token = 0; token < seq_lens[i]; ++token)
      ++dealt[static_cast<std::size_t>(token / interleave % dcp_size)];
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(dcp_size); ++rank)
      if (local[rank][i] != dealt[rank])
        return Difference{fmt::format("sequence {}, rank {}", i, rank),
                          fmt::format("{} tokens, expected {}", local[rank][i], dealt[rank])};
  }
  return std::nullopt;
}

Verdict rooms_refuse_malformed_input(const Built& built) {
  const std::int64_t count = std::int64_t{built.batch.num_reqs} % 7 + 1;
  if (auto v = three_way_refuses(built)) return v;
  if (auto v = two_way_refuses(built)) return v;
  if (auto v = prefill_chunks_refuse(count)) return v;
  if (auto v = reordering_refuses(count)) return v;
  if (auto v = context_parallel_refuses(count)) return v;
  return local_attention_refuses(count);
}

}  // namespace properties
