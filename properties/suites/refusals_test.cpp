// What production answers is not refused: each rule of the builder has a reason, and a batch that shows it.
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "properties/golden.hpp"
#include "properties/random_batch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace {

using attn::Error;

/// What vLLM's builder makes of a batch that this library refuses.
enum class Production : std::uint8_t {
  answers_wrong,  ///< numbers that a kernel reads wrong memory or skips work by, without a word
  dies,           ///< an exception: the engine is down
  cannot_happen   ///< not a batch: a caller's own broken number
};

struct Reason {
  Error::Kind kind;
  Production production;
  const char* why;
  const char* witness;  ///< a text that is refused by this rule
};

void PrintTo(const Reason& reason, std::ostream* out) { *out << attn::name(reason.kind); }

constexpr Reason reasons[]{
    {Error::negative_num_reqs, Production::cannot_happen, "a count below zero is no count", "num_reqs -1"},
    {Error::offsets_count, Production::dies, "vLLM slices the offsets by num_reqs + 1, and the shapes differ",
     "batch 2q3s9\nnum_reqs 3"},
    {Error::offsets_start, Production::answers_wrong, "the first region's offsets would not start at its first token",
     "query_start_loc 1 2"},
    {Error::offsets_decreasing, Production::answers_wrong, "a row would have a negative number of tokens",
     "query_start_loc 0 4 3\nnum_actual_tokens 4"},
    {Error::token_count_too_small, Production::answers_wrong, "a kernel would stop before the last request's tokens",
     "batch 2q3s9\nnum_actual_tokens 5"},
    {Error::negative_max_query_len, Production::cannot_happen, "a length below zero is no length", "max_query_len -1"},
    {Error::max_query_len_too_small, Production::answers_wrong,
     "kernels size their grid by it: the end of the longest query would not be computed",
     "batch q5s9\nmax_query_len 4"},
    {Error::seq_lens_count, Production::dies, "lengths and offsets are subtracted, and the shapes differ",
     "batch 2q3s9\nseq_lens 9"},
    {Error::upper_bound_count, Production::dies, "lengths and offsets are subtracted, and the shapes differ",
     "batch 2q3s9\nseq_lens_upper_bound 9"},
    {Error::negative_seq_len, Production::answers_wrong, "a negative length is no length", "batch q3s9\nseq_lens -1"},
    {Error::negative_upper_bound, Production::answers_wrong, "a negative length is no length",
     "batch q3s9\nseq_lens none\nseq_lens_upper_bound -1"},
    {Error::seq_len_above_bound, Production::answers_wrong,
     "classes and sizes come from the bound: a context longer than it is cut off",
     "batch q3s9\nseq_lens_upper_bound 8"},
    {Error::negative_max_seq_len, Production::cannot_happen, "a length below zero is no length", "max_seq_len -1"},
    {Error::max_seq_len_too_small, Production::answers_wrong,
     "kernels size their work by it: the end of the longest context would not be read", "batch q3s9\nmax_seq_len 8"},
    {Error::missing_seq_lens, Production::dies, "the splitter asserts that a bound is given",
     "batch q3s9\nseq_lens none"},
    {Error::unordered, Production::answers_wrong,
     "a context that stands after the first prefill is dropped without a word", "batch q2_q3s103"},
    {Error::invalid_decode_threshold, Production::cannot_happen, "a count of tokens below zero is no count",
     "decode_threshold -1"},
    {Error::invalid_workspace, Production::cannot_happen, "a count of tokens below zero is no count",
     "workspace_tokens -1"},
    {Error::invalid_chunk_alignment, Production::cannot_happen, "a page has a token at least", "chunk_alignment 0"},
    {Error::invalid_window, Production::cannot_happen, "a window below zero is no window", "window_left -1"},
    {Error::workspace_too_small, Production::dies, "the share of each extend is 0, which is divided by",
     "workspace_tokens 2\nbatch 3q5s100"},
    {Error::sum_overflow, Production::answers_wrong, "the windows' offsets wrap around int32",
     "workspace_tokens 2147483647\nwindow_left 2147483647\nbatch 2q5s2147483640"},
    {Error::capacity_exceeded, Production::dies, "memory is asked for until none is left",
     "workspace_tokens 2147483647\nbatch q5s2147483640"},
};

class Refusal : public testing::TestWithParam<Reason> {};

TEST_P(Refusal, has_a_batch_that_shows_it) {
  const auto parsed = batchtext::parse(fmt::format("attnfuzz 1\n{}\n", GetParam().witness));
  ASSERT_TRUE(parsed) << batchtext::message(parsed.error(), GetParam().witness);
  const batchtext::Arrays arrays{parsed->steps.front()};
  attn::MetadataBuilder builder;
  const auto built = builder.build(arrays.batch());
  ASSERT_FALSE(built) << GetParam().witness << "\nis built: the reason why it is refused has gone";
  EXPECT_EQ(attn::name(built.error().kind), attn::name(GetParam().kind)) << attn::message(built.error());
}

INSTANTIATE_TEST_SUITE_P(Reasons, Refusal, testing::ValuesIn(reasons),
                         [](const auto& info) { return std::string{attn::name(info.param.kind)}; });

TEST(Refusals, every_rule_of_the_builder_has_one_reason) {
  std::multiset<std::string_view> expected;
  for (int kind = 0; kind < Error::num_kinds; ++kind)
    if (properties::is_builder_kind(static_cast<Error::Kind>(kind)))
      expected.insert(attn::name(static_cast<Error::Kind>(kind)));
  std::multiset<std::string_view> found;
  for (const Reason& reason : reasons) found.insert(attn::name(reason.kind));
  EXPECT_EQ(found, expected);
}

// E5. What vLLM answered, on some 4,100 recorded inputs, is refused for the reason of its rule alone, and only where
// the answer is wrong.
TEST(Refusals, what_production_answers_is_refused_for_a_reason) {
  std::map<std::string, int> refused;
  int answered = 0;
  for (const char* file : {"upstream.jsonl", "vllm-0.33.0.jsonl", "vllm-0.33.0-mla.jsonl"}) {
    std::ifstream records{std::string{ATTNFUZZ_SOURCE_DIR "/corpus/golden/"} + file};
    ASSERT_TRUE(records) << file;
    int number = 0;
    for (std::string line; std::getline(records, line);) {
      ++number;
      const auto outcome = properties::compare_golden(line);
      ASSERT_TRUE(outcome) << file << ":" << number << ": " << outcome.error();
      ++answered;
      if (!outcome->refused) continue;
      const auto reason = std::find_if(std::begin(reasons), std::end(reasons),
                                       [&](const Reason& r) { return r.kind == outcome->refused->kind; });
      ASSERT_NE(reason, std::end(reasons)) << file << ":" << number << ": " << attn::message(*outcome->refused);
      EXPECT_EQ(reason->production, Production::answers_wrong)
          << file << ":" << number << " is answered, but refused here: " << attn::message(*outcome->refused);
      ++refused[std::string{attn::name(outcome->refused->kind)}];
    }
  }
  EXPECT_EQ(answered, 4100);
  EXPECT_EQ(refused, (std::map<std::string, int>{{"unordered", 34}}));
}

}  // namespace
