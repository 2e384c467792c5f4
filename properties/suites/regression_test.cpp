// Faults that were, one case each, with what is right written down. `attnfuzz reduce` prints more of these.
#include "properties/check.hpp"

#include "attn/metadata.hpp"

#include <gtest/gtest.h>

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
  EXPECT_EQ(built.error(), (attn::Error{attn::Error::max_query_len_too_small, -1, -2, 0}));
}

}  // namespace
