// The rooms besides the builder: splits, reordering, local attention, context parallelism, and the words of errors.
#include "attn/context_parallel.hpp"
#include "attn/local_attention.hpp"
#include "attn/mla_context.hpp"
#include "attn/reorder.hpp"
#include "attn/split.hpp"
#include "batchtext/batchtext.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using attn::DecodePrefillSplit;
using attn::Error;
using Ints = std::vector<std::int32_t>;

batchtext::Step step_of(std::string_view text) {
  const auto parsed = batchtext::parse("attnfuzz 1\n" + std::string{text});
  EXPECT_TRUE(parsed) << text;
  return parsed->steps.front();
}

constexpr bool uniform = true;
constexpr bool any_length = false;

tl::expected<DecodePrefillSplit, Error> two_way(std::string_view text, bool require_uniform) {
  const batchtext::Arrays arrays{step_of(text)};
  return attn::split_decodes_prefills(arrays.batch(), {require_uniform, {}});
}

TEST(TwoWaySplit, counts_leading_short_rows) {
  EXPECT_EQ(two_way("decode_threshold 3\nbatch q1s9_q3s9_q4s9_q1s9", any_length), (DecodePrefillSplit{2, 2, 4, 5}));
  EXPECT_EQ(two_way("batch q4s9_q1s9", any_length), (DecodePrefillSplit{0, 2, 0, 5}));
}

TEST(TwoWaySplit, uniform_rows_are_as_long_as_the_first) {
  EXPECT_EQ(two_way("decode_threshold 4\nbatch 2q3s9_q2s9", uniform), (DecodePrefillSplit{2, 1, 6, 2}));
  EXPECT_EQ(two_way("decode_threshold 4\nbatch 2q3s9_q2s9", any_length), (DecodePrefillSplit{3, 0, 8, 0}));
}

TEST(TwoWaySplit, padding_of_a_uniform_batch_is_decode) {
  EXPECT_EQ(two_way("decode_threshold 4\nbatch 2q3s9_q0", uniform), (DecodePrefillSplit{3, 0, 6, 0}));
  // Captured graphs count the padding at full length, or the tokens of any captured size.
  for (const auto& [tokens, counted] : {std::pair{"9", 9}, {"8", 8}, {"64", 64}})
    EXPECT_EQ(two_way(std::string{"decode_threshold 4\nbatch 2q3s9_q0\nnum_actual_tokens "} + tokens, uniform),
              (DecodePrefillSplit{3, 0, counted, 0}));
}

// vLLM 0.31 and later; before that the first empty row ended the decodes.
TEST(TwoWaySplit, empty_rows_among_uniform_decodes_are_skipped) {
  EXPECT_EQ(two_way("decode_threshold 4\nbatch q3_2q0_q20", uniform), (DecodePrefillSplit{3, 1, 3, 20}));
}

TEST(TwoWaySplit, prefills_take_padding_rows_and_surplus_tokens) {
  EXPECT_EQ(two_way("batch q1s9_q4_2q0", any_length), (DecodePrefillSplit{1, 3, 1, 4}));
  const std::string three_and_one = "decode_threshold 4\nbatch q3_q1_2q0\nnum_actual_tokens 8";
  EXPECT_EQ(two_way(three_and_one, any_length), (DecodePrefillSplit{4, 0, 8, 0}));
  EXPECT_EQ(two_way(three_and_one, uniform), (DecodePrefillSplit{1, 3, 3, 5}));
  EXPECT_EQ(two_way("batch q1_q5_2q0\nnum_actual_tokens 8", any_length), (DecodePrefillSplit{1, 3, 1, 7}));
  EXPECT_EQ(two_way("num_actual_tokens 4", any_length), (DecodePrefillSplit{0, 0, 4, 0}));
}

TEST(TwoWaySplit, a_request_that_computes_its_prompt_is_a_prefill_however_short) {
  const batchtext::Arrays arrays{step_of("decode_threshold 2\nbatch q2s9_q1s9_q2s9_q7")};
  const bool flags[]{false, true, false, true};
  EXPECT_EQ(attn::split_decodes_prefills(arrays.batch(), {any_length, flags}), (DecodePrefillSplit{1, 3, 2, 10}));
  const bool none[]{false, false, false, false};
  EXPECT_EQ(attn::split_decodes_prefills(arrays.batch(), {any_length, none}), (DecodePrefillSplit{3, 1, 5, 7}));
  EXPECT_EQ(attn::split_decodes_prefills(arrays.batch(), {any_length, std::span{flags}.first(3)}).error(),
            (Error{Error::count_mismatch, -1, 3, 4}));
}

TEST(TwoWaySplit, refuses_malformed_offsets) {
  const auto split = two_way("query_start_loc 0 4 3\nnum_actual_tokens 3", any_length);
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().kind, Error::offsets_decreasing);
  EXPECT_EQ(two_way("batch 2q3s9\nnum_actual_tokens 5", any_length).error(),
            (Error{Error::token_count_too_small, -1, 5, 6}));
  EXPECT_EQ(attn::split_decodes_prefills(attn::Batch{}, {uniform, {}}), DecodePrefillSplit{});
}

// What both of vLLM's runners hand over when a step is padded to a captured size.
TEST(ThreeWaySplit, surplus_tokens_are_the_decodes_or_nobodys) {
  const auto three_way = [](std::string_view text) {
    const batchtext::Arrays arrays{step_of(text)};
    return attn::split_decodes_extends_prefills(arrays.batch());
  };
  EXPECT_EQ(three_way("batch 3q1s9_q0s0\nnum_actual_tokens 4"),
            (attn::Split{.num_decodes = 4, .num_decode_tokens = 4}));
  EXPECT_EQ(three_way("batch q1_q0\nnum_actual_tokens 2"), (attn::Split{.num_decodes = 2, .num_decode_tokens = 2}));
  // By the rows: the stated maximum is that of the captured size.
  EXPECT_EQ(three_way("batch q1_q0\nnum_actual_tokens 2\nmax_query_len 2"),
            (attn::Split{.num_decodes = 2, .num_decode_tokens = 2}));
  EXPECT_EQ(three_way("batch q1s9_q4s9_q5_q0\nnum_actual_tokens 16"), (attn::Split{.num_decodes = 1,
                                                                                   .num_extends = 1,
                                                                                   .num_prefills = 1,
                                                                                   .num_padding = 1,
                                                                                   .num_decode_tokens = 1,
                                                                                   .num_extend_tokens = 4,
                                                                                   .num_prefill_tokens = 5,
                                                                                   .num_padding_tokens = 6}));
  EXPECT_EQ(three_way("batch q1s9\nnum_actual_tokens 0").error(), (Error{Error::token_count_too_small, -1, 0, 1}));
}

TEST(ThreeWaySplit, refuses_what_it_reads) {
  const batchtext::Arrays bad_offsets{step_of("query_start_loc 1 4")};
  EXPECT_EQ(attn::split_decodes_extends_prefills(bad_offsets.batch()).error().kind, Error::offsets_start);
  const batchtext::Arrays bad_length{step_of("batch q3s9\nseq_lens -9")};
  EXPECT_EQ(attn::split_decodes_extends_prefills(bad_length.batch()).error().kind, Error::negative_seq_len);
  // A decode-only split reads no length, so it cannot object to one.
  const batchtext::Arrays decode{step_of("batch q1s9\nseq_lens -9")};
  EXPECT_TRUE(attn::split_decodes_extends_prefills(decode.batch()));
}

TEST(PrefillChunks, are_the_longest_runs_that_fit) {
  const Ints lens{16, 0, 2, 6, 12, 10, 6, 5, 2};
  std::vector<attn::RequestRange> chunks(lens.size());
  ASSERT_EQ(attn::split_prefill_chunks(lens, 16, 1, chunks), 5);
  EXPECT_EQ(chunks[0], (attn::RequestRange{1, 3}));
  EXPECT_EQ(chunks[4], (attn::RequestRange{8, 10}));
  EXPECT_EQ(attn::split_prefill_chunks({}, 16, 1, chunks), 0);
}

TEST(PrefillChunks, refuse_what_cannot_fit) {
  std::vector<attn::RequestRange> chunks(2);
  const Ints lens{4, 20};
  EXPECT_EQ(attn::split_prefill_chunks(lens, 16, 0, chunks).error(), (Error{Error::workspace_too_small, 1, 16, 20}));
  EXPECT_EQ(attn::split_prefill_chunks(lens, -1, 0, chunks).error(), (Error{Error::invalid_workspace, -1, -1, 0}));
  EXPECT_EQ(attn::split_prefill_chunks(lens, 32, 0, std::span{chunks}.first(1)).error(),
            (Error{Error::capacity_exceeded, -1, 2, 1}));
  EXPECT_EQ(attn::split_prefill_chunks(lens, 32, 2147483647, chunks).error(),
            (Error{Error::sum_overflow, 2, 2147483649, 2147483647}));
  const Ints negative{4, -2};
  EXPECT_EQ(attn::split_prefill_chunks(negative, 16, 0, chunks).error(), (Error{Error::negative_seq_len, 1, -2, 0}));
}

TEST(Reorder, moves_as_few_as_possible) {
  const Ints scheduled{8, 1, 1, 9, 1};
  const Ints computed{0, 5, 5, 7, 0};
  Ints order(5, -1);
  EXPECT_EQ(attn::reorder_batch(scheduled, computed, {}, 1, order), true);
  EXPECT_EQ(order, (Ints{2, 1, 3, 0, 4}));
  EXPECT_EQ(attn::reorder_batch({}, {}, {}, 1, {}), false);
}

// As vLLM 0.33.0 orders them: decode, short extend, long extend, prefill.
TEST(Reorder, short_pieces_of_a_prompt_stand_between_decodes_and_long_ones) {
  const Ints scheduled{1, 4, 1, 4, 4, 4};
  const Ints computed{0, 0, 35, 0, 9, 21};
  const Ints prompt{1, 9, 41, 8, 13, 1};
  Ints order(6, -1);
  EXPECT_EQ(attn::reorder_batch(scheduled, computed, prompt, 4, order), true);
  EXPECT_EQ(order, (Ints{5, 4, 2, 3, 0, 1}));
}

TEST(Reorder, refuses_bad_counts_before_it_writes) {
  const Ints two{1, 2};
  const Ints one{1};
  const Ints negative{1, -2};
  Ints order(2, 77);
  const Error mismatch{Error::count_mismatch, -1, 1, 2};
  const Error negative_count{Error::negative_token_count, 1, -2, 0};
  EXPECT_EQ(attn::reorder_batch(two, one, {}, 1, order).error(), mismatch);
  EXPECT_EQ(attn::reorder_batch(two, two, one, 1, order).error(), mismatch);
  EXPECT_EQ(attn::reorder_batch(two, two, {}, 1, std::span{order}.first(1)).error(), mismatch);
  EXPECT_EQ(attn::reorder_batch(two, two, {}, -1, order).error(), (Error{Error::invalid_decode_threshold, -1, -1, 0}));
  EXPECT_EQ(attn::reorder_batch(negative, two, {}, 1, order).error(), negative_count);
  EXPECT_EQ(attn::reorder_batch(two, negative, {}, 1, order).error(), negative_count);
  EXPECT_EQ(attn::reorder_batch(two, two, negative, 1, order).error(), negative_count);
  EXPECT_EQ(order, (Ints{77, 77}));
}

/// Two requests over a table of three columns of four tokens each.
struct Local {
  Ints offsets{0, 2, 5};
  Ints lens{5, 9};
  Ints blocks{10, 11, 12, 20, 21, 22};
  attn::LocalAttentionInput input;
  attn::LocalAttentionBuilder builder;

  Local() { refresh(); }
  void refresh() {
    input.attn_chunk_size = 8;
    input.block_size = 4;
    input.query_start_loc = offsets;
    input.seq_lens = lens;
    input.block_table = {blocks, 3};
  }
  Error error() { return builder.build(input).error(); }
};

TEST(LocalAttention, makes_a_virtual_request_of_each_chunk) {
  Local local;
  const auto made = local.builder.build(local.input);
  ASSERT_TRUE(made);
  EXPECT_EQ(Ints(made->cu_seqlens_q.begin(), made->cu_seqlens_q.end()), (Ints{0, 2, 4, 5}));
  EXPECT_EQ(Ints(made->seqlens_k.begin(), made->seqlens_k.end()), (Ints{5, 8, 1}));
  EXPECT_EQ(Ints(made->k_starts.begin(), made->k_starts.end()), (Ints{0, 0, 8}));
  EXPECT_EQ(Ints(made->block_table.data.begin(), made->block_table.data.end()), (Ints{10, 11, 20, 21, 22, 22}));
}

TEST(LocalAttention, rows_without_queries_have_no_virtual_request) {
  Local local;
  local.offsets = {0, 2, 2};
  local.lens = {5, -7};
  local.refresh();
  const auto made = local.builder.build(local.input);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->seqlens_k.size(), 1u);
}

TEST(LocalAttention, refuses_malformed_input) {
  Local local;
  local.input.block_size = 0;
  EXPECT_EQ(local.error(), (Error{Error::invalid_block_size, -1, 0, 1}));
  local.refresh();
  local.input.attn_chunk_size = 6;
  EXPECT_EQ(local.error(), (Error{Error::invalid_attn_chunk_size, -1, 6, 4}));
  local.refresh();
  local.input.query_start_loc = std::span{local.offsets}.first(2);
  EXPECT_EQ(local.error(), (Error{Error::offsets_count, -1, 2, 3}));
  local.refresh();
  local.input.block_table.num_cols = 4;
  EXPECT_EQ(local.error(), (Error{Error::count_mismatch, -1, 6, 8}));
  local.refresh();
  local.offsets = {1, 2, 5};
  EXPECT_EQ(local.error(), (Error{Error::offsets_start, 0, 1, 0}));
  local.offsets = {0, 3, 2};
  EXPECT_EQ(local.error(), (Error{Error::offsets_decreasing, 2, 2, 3}));
  local.offsets = {0, 2, 5};
  local.lens = {5, -1};
  EXPECT_EQ(local.error(), (Error{Error::negative_seq_len, 1, -1, 0}));
  local.lens = {5, 2};
  EXPECT_EQ(local.error(), (Error{Error::seq_len_below_query_len, 1, 2, 3}));
  local.lens = {5, 13};
  EXPECT_EQ(local.error(), (Error{Error::block_table_too_narrow, 1, 3, 4}));
}

TEST(LocalAttention, refuses_what_no_builder_could_hold) {
  // One request of 2^31 - 1 queries in chunks of one token.
  const Ints offsets{0, 2147483647};
  const Ints lens{2147483647};
  attn::LocalAttentionInput input;
  input.attn_chunk_size = 1073741824;
  input.block_size = 1073741824;
  input.query_start_loc = offsets;
  input.seq_lens = lens;
  const Ints two_blocks{1, 2};
  input.block_table = {two_blocks, 2};
  attn::LocalAttentionBuilder builder;
  EXPECT_TRUE(builder.build(input)) << "two chunks";
  input.attn_chunk_size = 1073741824;
  input.block_size = 1;
  EXPECT_EQ(builder.build(input).error().kind, Error::block_table_too_narrow);
  const Ints one_query{0, 1};
  const Ints one_key{1};
  input.query_start_loc = one_query;
  input.seq_lens = one_key;
  // The row of blocks and three numbers, and one more offset. It used to say that 1 is needed, and 0 the limit.
  EXPECT_EQ(builder.build(input).error(), (Error{Error::capacity_exceeded, -1, (1 << 30) + 4, 1 << 28}))
      << "a row of 2^30 columns";
  input.query_start_loc = offsets;
  input.seq_lens = lens;
  input.attn_chunk_size = input.block_size = 1;
  EXPECT_EQ(builder.build(input).error().kind, Error::block_table_too_narrow);
}

TEST(ContextParallel, deals_tokens_in_turns) {
  const Ints lens{0, 5, 12, 2147483647};
  Ints local(4, -1);
  ASSERT_TRUE(attn::dcp_local_seq_lens(lens, 2, 0, 4, local));
  EXPECT_EQ(local, (Ints{0, 4, 8, 1073741824}));
  ASSERT_TRUE(attn::dcp_local_seq_lens(lens, 2, 1, 4, local));
  EXPECT_EQ(local, (Ints{0, 1, 4, 1073741823}));
  ASSERT_TRUE(attn::dcp_local_seq_lens(lens, 2147483647, 1, 2147483647, local)) << "a round beyond 32 bits";
  EXPECT_EQ(local, (Ints{0, 0, 0, 0}));
}

TEST(ContextParallel, refuses_malformed_input) {
  const Ints lens{4, -3};
  Ints local(2, 77);
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 2, 0, 1, std::span{local}.first(1)).error(),
            (Error{Error::count_mismatch, -1, 1, 2}));
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 0, 0, 1, local).error(), (Error{Error::invalid_dcp_size, -1, 0, 1}));
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 2, 2, 1, local).error(), (Error{Error::invalid_rank, -1, 2, 2}));
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 2, -1, 1, local).error(), (Error{Error::invalid_rank, -1, -1, 2}));
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 2, 1, 0, local).error(), (Error{Error::invalid_interleave, -1, 0, 1}));
  EXPECT_EQ(attn::dcp_local_seq_lens(lens, 2, 1, 1, local).error(), (Error{Error::negative_seq_len, 1, -3, 0}));
  EXPECT_EQ(local, (Ints{77, 77}));
}

/// Three requests over two ranks in turns of 2, pages of 2: slices start on multiples of 4.
struct Mla {
  Ints offsets{0, 3, 5, 6};
  Ints contexts{6, 0, 9};
  attn::MlaContextInput input{offsets, contexts, 8, 2, 2, 2};
  attn::MlaContextBuilder builder;
};

TEST(MlaContext, chunks_cut_on_pages_of_every_rank) {
  Mla mla;
  const auto plan = mla.builder.build(mla.input);
  ASSERT_TRUE(plan) << attn::message(plan.error());
  ASSERT_EQ(plan->chunks.size(), 3u);
  EXPECT_EQ(plan->chunks[0].requests, (attn::RequestRange{0, 1}));
  EXPECT_EQ(plan->chunks[1].requests, (attn::RequestRange{2, 3}));
  EXPECT_EQ(plan->chunks[2].requests, (attn::RequestRange{2, 3}));
  EXPECT_TRUE(plan->chunks[2].is_continuation);
  EXPECT_EQ(plan->chunks[2].query_tokens, (attn::RequestRange{5, 6}));
  EXPECT_EQ(Ints(plan->starts.begin(), plan->starts.end()), (Ints{0, 0, 8}));
  EXPECT_EQ(Ints(plan->seq_lens.begin(), plan->seq_lens.end()), (Ints{6, 8, 1}));
  EXPECT_EQ(Ints(plan->local_starts.begin(), plan->local_starts.end()), (Ints{0, 0, 4}));
  EXPECT_EQ(Ints(plan->local_seq_lens.begin(), plan->local_seq_lens.end()), (Ints{4, 4, 2}));
  EXPECT_EQ(Ints(plan->local_context_lens.data.begin(), plan->local_context_lens.data.end()), (Ints{4, 2, 0, 0, 5, 4}));
}

TEST(MlaContext, refuses_malformed_input_and_keeps_the_last_result) {
  Mla mla;
  const auto before = mla.builder.build(mla.input);
  ASSERT_TRUE(before);
  const auto refused = [&](auto change, const Error& expected) {
    attn::MlaContextInput bad = mla.input;
    change(bad);
    const auto plan = mla.builder.build(bad);
    ASSERT_FALSE(plan) << attn::message(expected);
    EXPECT_EQ(plan.error(), expected) << attn::message(plan.error());
  };
  const Ints falling{0, 3, 2, 6};
  const Ints from_one{1, 3, 5, 6};
  const Ints negative{6, -1, 9};
  refused([](auto& bad) { bad.block_size = 0; }, {Error::invalid_block_size, -1, 0, 1});
  refused([](auto& bad) { bad.dcp_size = 0; }, {Error::invalid_dcp_size, -1, 0, 1});
  refused([](auto& bad) { bad.interleave = 0; }, {Error::invalid_interleave, -1, 0, 1});
  refused([](auto& bad) { bad.workspace_tokens = -1; }, {Error::invalid_workspace, -1, -1, 0});
  refused([](auto& bad) { bad.workspace_tokens = 3; }, {Error::workspace_too_small, -1, 3, 4});
  refused([](auto& bad) { bad.query_start_loc = bad.query_start_loc.first(3); }, {Error::offsets_count, -1, 3, 4});
  refused([&](auto& bad) { bad.query_start_loc = from_one; }, {Error::offsets_start, 0, 1, 0});
  refused([&](auto& bad) { bad.query_start_loc = falling; }, {Error::offsets_decreasing, 2, 2, 3});
  refused([&](auto& bad) { bad.context_lens = negative; }, {Error::negative_seq_len, 1, -1, 0});
  // An alignment that leaves 64 bits is larger than any workspace.
  refused([](auto& bad) { bad.dcp_size = bad.interleave = bad.block_size = 2147483647; },
          {Error::workspace_too_small, -1, 8, std::int64_t{2147483647} * 2147483647});
  EXPECT_EQ(Ints(before->seq_lens.begin(), before->seq_lens.end()), (Ints{6, 8, 1}));
  // 6,442,450,941 tokens, half as many on a rank, six slices in four chunks, and their offsets.
  const Ints huge{2147483647, 2147483647, 2147483647};
  refused(
      [&](auto& bad) {
        bad.context_lens = huge;
        bad.workspace_tokens = 2147483647;
      },
      {Error::capacity_exceeded, -1, 9663676477, std::int64_t{1} << 28});
}

TEST(ErrorText, every_kind_has_a_name_and_a_line_of_its_own) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < Error::num_kinds; ++kind) {
    const Error error{static_cast<Error::Kind>(kind), 11, 22, 33};
    names.insert(attn::name(error.kind));
    const std::string line = attn::message(error);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    // Those have no number, or a name instead.
    if (error.kind != Error::missing_seq_lens && error.kind != Error::unsupported_policy)
      EXPECT_NE(line.find("22"), std::string::npos) << line << ": names its value";
    EXPECT_NE(line.find("11"), std::string::npos) << line << ": names its index";
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Error::num_kinds));
  EXPECT_EQ(attn::message({Error::unordered, 2, 15, 1}),
            "unordered: request 2 has 15 context tokens, but stands behind request 1, the first prefill");
  const auto unknown = static_cast<Error::Kind>(200);
  EXPECT_EQ(attn::message({unknown, 0, 0, 0}), "unknown");
}

}  // namespace
