// Faults that were, one case each, with what is right written down. `attnfuzz reduce` prints more of these.
#include "properties/check.hpp"

#include "attn/local_attention.hpp"
#include "attn/metadata.hpp"

#include <gtest/gtest.h>

#include <vector>

#define EXPECT_HOLDS(text)                                                                         \
  do {                                                                                             \
    const auto finding = properties::check_text(text);                                             \
    EXPECT_FALSE(finding) << finding->id << ": " << finding->where << ": " << finding->difference; \
  } while (false)

namespace {

// vLLM PR 47894: a maximum over an empty tensor, when a Whisper warm-up batch had extends and zero context chunks.
TEST(Regression, c01_empty_maximum_over_zero_chunks) { EXPECT_HOLDS("attnfuzz 1\nbatch 2q3s0\n"); }

// vLLM PR 44936: an assertion on lengths that a decode-only batch never needs.
TEST(Regression, a01_decode_only_batch_without_lengths) {
  EXPECT_HOLDS("attnfuzz 1\ndecode_threshold 4\nbatch q4s9_q4s12\nseq_lens none\n");
}

// Found by fuzz_reject: the search for the longest request read behind the offsets of a batch that has none.
TEST(Regression, negative_max_query_len_of_an_empty_batch) {
  EXPECT_HOLDS("attnfuzz 1\nmax_query_len -2\n");
  attn::Batch batch;
  batch.max_query_len = -2;
  attn::MetadataBuilder builder;
  const auto built = builder.build(batch);
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error(), (attn::Error{attn::Error::negative_max_query_len, -1, -2, 0}));
}

// Found by review: the harness' own arithmetic on the longest threshold and the smallest length.
TEST(Regression, arithmetic_of_the_harness_at_the_ends_of_int32) {
  EXPECT_HOLDS("attnfuzz 1\nbatch q5s9\nseq_lens -2147483648\n");
  EXPECT_HOLDS("attnfuzz 1\ndecode_threshold 2147483647\nbatch 3q1s9\n");
}

// Found by review: -1 stood for "no padded uniform batch", and was taken for a captured token count.
TEST(Regression, token_count_of_minus_one) {
  attn::Batch batch;
  batch.num_actual_tokens = -1;
  const auto split = attn::split_decodes_prefills(batch, {});
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error(), (attn::Error{attn::Error::token_count_too_small, -1, -1, 0}));
}

// Found by review: the product of requests and columns wrapped to the size of an empty table, which was then read.
TEST(Regression, block_table_of_2_to_the_64_entries) {
  const std::vector<std::int32_t> offsets{0, 1, 2, 3, 4};
  const std::vector<std::int32_t> lens{1, 1, 1, 1};
  attn::LocalAttentionInput input;
  input.attn_chunk_size = input.block_size = 1;
  input.query_start_loc = offsets;
  input.seq_lens = lens;
  input.block_table.num_cols = std::int64_t{1} << 62;
  attn::LocalAttentionBuilder builder;
  const auto local = builder.build(input);
  ASSERT_FALSE(local);
  EXPECT_EQ(local.error().kind, attn::Error::count_mismatch);
}

}  // namespace
