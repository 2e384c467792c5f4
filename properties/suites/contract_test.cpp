// The contract, row by row, with the numbers written out.
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace {

using attn::Error;
using attn::Split;

/// A text's last step, built.
class Built {
 public:
  explicit Built(std::string_view text) : arrays_(step_of(text)), result_(builder_.build(arrays_.batch())) {}

  const attn::Metadata& operator*() const { return result_.value(); }
  const attn::Metadata* operator->() const { return &result_.value(); }
  [[nodiscard]] std::optional<Error> error() const { return result_ ? std::nullopt : std::optional{result_.error()}; }
  [[nodiscard]] const attn::Batch& batch() const { return arrays_.batch(); }

 private:
  static batchtext::Step step_of(std::string_view text) {
    const auto parsed = batchtext::parse("attnfuzz 1\n" + std::string{text});
    EXPECT_TRUE(parsed) << text;
    EXPECT_FALSE(properties::check_case(*parsed)) << text;
    return parsed->steps.back();
  }
  batchtext::Arrays arrays_;
  attn::MetadataBuilder builder_;
  tl::expected<attn::Metadata, Error> result_;
};

std::vector<std::int32_t> list(std::span<const std::int32_t> values) { return {values.begin(), values.end()}; }

using Ints = std::vector<std::int32_t>;

TEST(Contract, no_request_makes_empty_regions) {
  attn::MetadataBuilder builder;
  const auto built = builder.build(attn::Batch{});
  ASSERT_TRUE(built);
  EXPECT_EQ(built->split, Split{});
  EXPECT_EQ(list(built->decode.query_start_loc), Ints{0});
  EXPECT_EQ(list(built->extend.query_start_loc), Ints{0});
  EXPECT_EQ(list(built->prefill.query_start_loc), Ints{0});
  EXPECT_EQ(built->context.num_chunks, 0);
  EXPECT_EQ(built->num_kv_tokens, 0);
  EXPECT_FALSE(built->window);
  // The one offset of no request may be there or not.
  const Ints zero{0};
  attn::Batch batch;
  batch.query_start_loc = zero;
  EXPECT_TRUE(builder.build(batch));
}

// vLLM PR 47894: two extends of a Whisper warm-up batch, and nothing in the cache.
TEST(Contract, zero_chunks_have_empty_arrays_of_the_right_rank) {
  const Built built{"batch 2q3s0"};
  EXPECT_EQ(built->split, (Split{.num_extends = 2, .num_extend_tokens = 6}));
  const attn::ChunkedContext& context = built->context;
  EXPECT_EQ(context.num_chunks, 0);
  EXPECT_EQ(list(context.context_lens), (Ints{0, 0}));
  EXPECT_EQ(context.chunk_starts.num_cols, 2);
  EXPECT_TRUE(context.chunk_starts.data.empty());
  EXPECT_EQ(context.cu_seq_lens.num_cols, 3);
  EXPECT_TRUE(context.cu_seq_lens.data.empty());
  EXPECT_TRUE(context.seq_tot.empty());
  EXPECT_TRUE(context.max_seq_lens.empty());
  EXPECT_TRUE(context.token_to_batch_data.empty());
  ASSERT_EQ(context.token_start.size(), 1u);
  EXPECT_EQ(context.token_start[0], 0);
}

// vLLM PR 44936: an EAGLE step of decodes only, whose lengths are not on the host.
TEST(Contract, decode_only_needs_no_length) {
  const Built built{"decode_threshold 4\nbatch q4s9_q4s12\nseq_lens none\nmax_seq_len 12"};
  EXPECT_EQ(built->split, (Split{.num_decodes = 2, .num_decode_tokens = 8}));
  EXPECT_EQ(built->decode.max_seq_len, 12);
  EXPECT_EQ(built->decode.min_seq_len, 0);
  EXPECT_EQ(list(built->decode.query_start_loc), (Ints{0, 4, 8}));
  EXPECT_EQ(built->context.num_chunks, 0);
  EXPECT_EQ(built->num_kv_tokens, 24);
}

TEST(Contract, every_row_of_a_decode_only_batch_is_a_decode_padding_too) {
  const Built built{"batch 2q1s9_3q0s77"};
  EXPECT_EQ(built->split, (Split{.num_decodes = 5, .num_decode_tokens = 2}));
  EXPECT_EQ(list(built->decode.query_start_loc), (Ints{0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(built->decode.min_query_len, 0);
  EXPECT_EQ(built->decode.max_seq_len, 9);
  EXPECT_EQ(built->num_kv_tokens, 18);
}

// Upstream answers all zeros: no row is attended.
TEST(Contract, rows_decide_when_max_query_len_is_above_them) {
  const Built built{"batch 3q1\nmax_query_len 4"};
  EXPECT_EQ(built->split, (Split{.num_decodes = 3, .num_decode_tokens = 3}));
}

TEST(Contract, max_query_len_below_a_row_is_an_error) {
  EXPECT_EQ(Built{"batch q1s4_q3s9\nmax_query_len 2"}.error(), (Error{Error::max_query_len_too_small, 1, 2, 3}));
}

TEST(Contract, max_seq_len_below_a_length_is_an_error) {
  EXPECT_EQ(Built{"batch q1s4_q3s9\nmax_seq_len 8"}.error(), (Error{Error::max_seq_len_too_small, 1, 8, 9}));
}

TEST(Contract, extends_and_prefills_need_lengths) {
  EXPECT_EQ(Built{"batch q1s4_q3s9\nseq_lens none"}.error(), (Error{Error::missing_seq_lens, 1, 0, 0}));
  EXPECT_FALSE(Built{"batch q1s4_q3s9\nseq_lens none\nseq_lens_upper_bound batch"}.error());
}

TEST(Contract, regions_report_exact_lengths_else_bounds_else_the_scalar) {
  const Built exact{"batch q1s4_q1s9\nseq_lens_upper_bound 6 11\nmax_seq_len 20"};
  EXPECT_EQ(exact->decode.max_seq_len, 9);
  EXPECT_EQ(exact->decode.min_seq_len, 4);
  const Built bound{"batch q1s4_q1s9\nseq_lens none\nseq_lens_upper_bound 6 11\nmax_seq_len 20"};
  EXPECT_EQ(bound->decode.max_seq_len, 11);
  EXPECT_EQ(bound->decode.min_seq_len, 0);
  EXPECT_EQ(bound->num_kv_tokens, 17);
  const Built neither{"batch q1s4_q1s9\nseq_lens none\nmax_seq_len 20"};
  EXPECT_EQ(neither->decode.max_seq_len, 20);
}

TEST(Contract, sequences_below_their_query_have_no_context) {
  const Built built{"workspace_tokens 8\nbatch 4q4s2"};
  EXPECT_EQ(built->split.num_extends, 4);
  EXPECT_EQ(built->context.num_chunks, 0);
}

TEST(Contract, a_workspace_without_a_token_for_each_extend_is_too_small) {
  EXPECT_EQ(Built{"workspace_tokens 2\nbatch 3q2s9"}.error(), (Error{Error::workspace_too_small, -1, 2, 3}));
  EXPECT_EQ(Built{"workspace_tokens 0\nchunk_policy packed\nbatch q2s9"}.error(),
            (Error{Error::workspace_too_small, -1, 0, 1}));
  EXPECT_FALSE(Built{"workspace_tokens 1\nchunk_policy packed\nbatch 3q2s9"}.error());
  EXPECT_FALSE(Built{"workspace_tokens 0\nbatch 3q2s1"}.error()) << "nothing to chunk";
}

// Kernels divide a start by the page size: inside a page they read other tokens.
TEST(Contract, slices_start_on_the_alignment) {
  const Built shares{"workspace_tokens 64\nchunk_alignment 16\nbatch 3q2s60"};
  EXPECT_EQ(shares->context.num_chunks, 4) << "shares of 21 are rounded down to 16";
  EXPECT_EQ(list(shares->context.chunk_starts[1]), (Ints{16, 16, 16}));
  EXPECT_EQ(Built{"workspace_tokens 47\nchunk_alignment 16\nbatch 3q2s60"}.error(),
            (Error{Error::workspace_too_small, -1, 47, 48}));
  const Built packed{"workspace_tokens 20\nchunk_policy packed\nchunk_alignment 16\nbatch 2q2s18_q2s10"};
  EXPECT_EQ(packed->context.num_chunks, 3) << "16, 16 and 8, though all three are twice the workspace";
  EXPECT_EQ(Built{"workspace_tokens 15\nchunk_policy packed\nchunk_alignment 16\nbatch q2s9"}.error(),
            (Error{Error::workspace_too_small, -1, 15, 16}));
  EXPECT_FALSE(Built{"workspace_tokens 4\nchunk_alignment 16\nbatch 2q3s2"}.error()) << "nothing to cut";
  EXPECT_EQ(Built{"chunk_alignment 0"}.error(), (Error{Error::invalid_chunk_alignment, -1, 0, 0}));
}

TEST(Contract, mla_ends_a_chunk_with_a_cut_or_an_empty_context) {
  const Built cut{"workspace_tokens 128\nchunk_policy mla\nbatch q13s140_q9s138_q4s132"};
  EXPECT_EQ(cut->context.num_chunks, 3);
  EXPECT_EQ(list(cut->context.seq_lens[0]), (Ints{127, 1, 0}));
  EXPECT_EQ(list(cut->context.chunk_starts[1]), (Ints{127, 1, 0}));
  EXPECT_EQ(list(cut->context.seq_lens[2]), (Ints{0, 0, 128}));
  const Built empty{"workspace_tokens 64\nchunk_policy mla\nbatch q2s12_q2s1_q2s12"};
  EXPECT_EQ(empty->context.num_chunks, 2);
}

TEST(Contract, no_plan_has_no_workspace_that_is_too_small) {
  EXPECT_EQ(Built{"window_left 16\nworkspace_tokens 2\nbatch 3q5s100"}.error(),
            (Error{Error::workspace_too_small, -1, 2, 3}));
  const Built none{"window_left 16\nworkspace_tokens 2\nchunk_policy none\nbatch 3q5s100"};
  EXPECT_EQ(none->context.num_chunks, 0);
  EXPECT_EQ(list(none->context.context_lens), (Ints{95, 95, 95}));
  EXPECT_EQ(none->window->total_tokens, 66);
}

TEST(Contract, context_behind_the_first_prefill_is_unordered) {
  EXPECT_EQ(Built{"batch q1s9_q3_q5s20"}.error(), (Error{Error::unordered, 2, 15, 1}));
  EXPECT_EQ(Built{"batch q3_q1s9"}.error(), (Error{Error::unordered, 1, 8, 0})) << "a decode behind a prefill";
  EXPECT_FALSE(Built{"batch q3_q5s2"}.error()) << "cross-attention without context";
  EXPECT_FALSE(Built{"batch q3_q0s9_q4"}.error()) << "no query token, no context to drop";
}

TEST(Contract, malformed_offsets_have_an_error_each) {
  EXPECT_EQ(Built{"query_start_loc 1 2"}.error(), (Error{Error::offsets_start, 0, 1, 0}));
  EXPECT_EQ(Built{"query_start_loc 0 4 3\nnum_actual_tokens 3"}.error(), (Error{Error::offsets_decreasing, 2, 3, 4}));
  EXPECT_EQ(Built{"query_start_loc 0 4\nnum_reqs 2"}.error(), (Error{Error::offsets_count, -1, 2, 3}));
  EXPECT_EQ(Built{"query_start_loc 0 4\nnum_actual_tokens 3"}.error(), (Error{Error::token_count_too_small, -1, 3, 4}));
  EXPECT_EQ(Built{"num_reqs -2"}.error(), (Error{Error::negative_num_reqs, -1, -2, 0}));
  EXPECT_EQ(Built{"query_start_loc 0 -2147483648 2147483647"}.error(),
            (Error{Error::offsets_decreasing, 1, -2147483648, 0}));
}

TEST(Contract, malformed_lengths_have_an_error_each) {
  EXPECT_EQ(Built{"batch 2q3s9\nseq_lens 9 -1"}.error(), (Error{Error::negative_seq_len, 1, -1, 0}));
  EXPECT_EQ(Built{"batch 2q3s9\nseq_lens none\nseq_lens_upper_bound -3 9"}.error(),
            (Error{Error::negative_upper_bound, 0, -3, 0}));
  EXPECT_EQ(Built{"batch 2q3s9\nseq_lens_upper_bound 9 8"}.error(), (Error{Error::seq_len_above_bound, 1, 9, 8}));
  EXPECT_EQ(Built{"batch 2q3s9\nseq_lens 9"}.error(), (Error{Error::seq_lens_count, -1, 1, 2}));
  EXPECT_EQ(Built{"batch 2q3s9\nseq_lens_upper_bound 9 9 9"}.error(), (Error{Error::upper_bound_count, -1, 3, 2}));
}

// Both of vLLM's runners hand over the token count of the captured size while padding rows repeat the last offset.
TEST(Contract, tokens_above_the_last_offset_are_the_decodes_or_nobodys) {
  const Built decodes{"batch 3q1s9_q0s0\nnum_actual_tokens 4"};
  EXPECT_EQ(decodes->split, (Split{.num_decodes = 4, .num_decode_tokens = 4}));
  EXPECT_EQ(decodes->decode.num_tokens, 3) << "a region has the tokens of its requests";
  EXPECT_EQ(list(decodes->decode.query_start_loc), (Ints{0, 1, 2, 3, 3}));
  const Built mixed{"batch q1s9_q4s9_q5_q0\nnum_actual_tokens 16"};
  EXPECT_EQ(mixed->split.num_prefill_tokens, 5);
  EXPECT_EQ(mixed->split.num_padding_tokens, 6);
  EXPECT_EQ(mixed->num_kv_tokens, 23);
}

TEST(Contract, surplus_tokens_count_towards_the_limit_of_entries) {
  attn::MetadataBuilder builder{100};
  const auto entries_of = [&](std::int32_t num_actual_tokens) {
    const Ints offsets{0, 1};
    attn::Batch batch;
    batch.num_reqs = 1;
    batch.query_start_loc = offsets;
    batch.num_actual_tokens = num_actual_tokens;
    batch.max_query_len = 1;
    return builder.build(batch);
  };
  // Four offsets of three regions, and token_start's one.
  EXPECT_TRUE(entries_of(1 + 95));
  EXPECT_EQ(entries_of(1 + 96).error(), (Error{Error::capacity_exceeded, -1, 101, 100}));
  EXPECT_EQ(entries_of(2147483647).error(), (Error{Error::capacity_exceeded, -1, 2147483651, 100}));
}

TEST(Contract, settings_below_zero_have_an_error_each) {
  EXPECT_EQ(Built{"decode_threshold -1"}.error(), (Error{Error::invalid_decode_threshold, -1, -1, 0}));
  EXPECT_EQ(Built{"workspace_tokens -5"}.error(), (Error{Error::invalid_workspace, -1, -5, 0}));
  EXPECT_EQ(Built{"window_left -1"}.error(), (Error{Error::invalid_window, -1, -1, 0}));
}

TEST(Contract, sums_beyond_int32_are_an_error) {
  const Built built{"window_left 2147483647\nworkspace_tokens 2147483647\nbatch 2q3s2000000000"};
  EXPECT_EQ(built.error(), (Error{Error::sum_overflow, 1, 4000000000, 2147483647}));
}

TEST(Contract, padding_behind_extends_is_in_no_region) {
  const Built built{"workspace_tokens 12\nbatch q1s9_q5s20_2q0s99"};
  EXPECT_EQ(
      built->split,
      (Split{.num_decodes = 1, .num_extends = 1, .num_padding = 2, .num_decode_tokens = 1, .num_extend_tokens = 5}));
  EXPECT_EQ(built->context.num_chunks, 2) << "one extend has the whole workspace";
  EXPECT_EQ(built->num_kv_tokens, 29) << "stale lengths own nothing";
}

TEST(Contract, classes_come_from_the_bound_and_slices_from_exact_lengths) {
  const Built built{"workspace_tokens 4\nbatch q4s4_q4s7\nseq_lens_upper_bound 6 12"};
  EXPECT_EQ(built->split.num_extends, 2) << "by its exact length the first is a prefill";
  EXPECT_EQ(list(built->context.context_lens), (Ints{0, 3}));
  EXPECT_EQ(built->context.num_chunks, 2);
  EXPECT_EQ(list(built->context.seq_lens[1]), (Ints{0, 1}));
}

TEST(Contract, equal_share_gives_every_extend_its_part_of_each_pass) {
  // vLLM PR 50613: shares of 4 tokens, three passes where 15 tokens fit in one.
  const Built built{"workspace_tokens 16\nbatch q2s14_3q2s3"};
  const attn::ChunkedContext& context = built->context;
  ASSERT_EQ(context.num_chunks, 3);
  EXPECT_EQ(list(context.chunk_starts[2]), (Ints{8, 8, 8, 8}));
  EXPECT_EQ(list(context.seq_lens[0]), (Ints{4, 1, 1, 1}));
  EXPECT_EQ(list(context.cu_seq_lens[0]), (Ints{0, 4, 5, 6, 7}));
  EXPECT_EQ(list(context.seq_lens[2]), (Ints{4, 0, 0, 0}));
  EXPECT_EQ(list(context.seq_tot), (Ints{7, 4, 4}));
  EXPECT_EQ(list(context.max_seq_lens), (Ints{4, 4, 4}));
  EXPECT_EQ(list(context.token_to_batch(0)), (Ints{0, 0, 0, 0, 1, 2, 3}));
}

TEST(Contract, packed_fills_the_workspace) {
  EXPECT_EQ(
      Built { "workspace_tokens 16\nchunk_policy packed\nbatch q2s14_3q2s3" } -> context.num_chunks, 1);
  const Built built{"workspace_tokens 8\nchunk_policy packed\nbatch q2s14_3q2s3"};
  const attn::ChunkedContext& context = built->context;
  ASSERT_EQ(context.num_chunks, 2);
  EXPECT_EQ(list(context.chunk_starts[0]), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(list(context.seq_lens[0]), (Ints{8, 0, 0, 0}));
  EXPECT_EQ(list(context.chunk_starts[1]), (Ints{8, 0, 0, 0}));
  EXPECT_EQ(list(context.seq_lens[1]), (Ints{4, 1, 1, 1}));
  EXPECT_EQ(list(context.token_to_batch(1)), (Ints{0, 0, 0, 0, 1, 2, 3}));
}

TEST(Contract, a_window_shows_the_last_tokens) {
  const Built built{"window_left 3\nbatch q1s50_q2s9_q5s9"};
  ASSERT_TRUE(built->window);
  EXPECT_EQ(list(built->window->seq_lens), (Ints{6, 9}));
  EXPECT_EQ(list(built->window->seq_starts), (Ints{3, 0}));
  EXPECT_EQ(list(built->window->cu_seq_lens), (Ints{0, 6, 15}));
  EXPECT_EQ(built->window->max_seq_len, 9);
  EXPECT_EQ(built->window->total_tokens, 15);
  EXPECT_EQ(list(built->window->token_to_batch), (Ints{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(Contract, every_region_has_its_own_numbers) {
  const Built built{"decode_threshold 2\nbatch q1s9_q2s40_q3s20_q8s30_q5_q9"};
  EXPECT_EQ(built->split, (Split{2, 2, 2, 0, 3, 11, 14}));
  EXPECT_EQ(built->extend.first_req, 2);
  EXPECT_EQ(built->extend.max_query_len, 8);
  EXPECT_EQ(built->extend.min_query_len, 3);
  EXPECT_EQ(built->extend.max_seq_len, 30);
  EXPECT_EQ(built->extend.min_seq_len, 20);
  EXPECT_EQ(list(built->extend.query_start_loc), (Ints{0, 3, 11}));
  EXPECT_EQ(built->prefill.first_req, 4);
  EXPECT_EQ(list(built->prefill.query_start_loc), (Ints{0, 5, 14}));
  EXPECT_EQ(built->num_kv_tokens, 9 + 40 + 20 + 30 + 5 + 9);
}

}  // namespace
