// The text form: what parses, what it parses to, and where an error points.
#include "batchtext/batchtext.hpp"
#include "attn/metadata.hpp"
#include "properties/random_batch.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

using batchtext::Case;
using batchtext::Lens;
using batchtext::Request;
using batchtext::Step;

Case parsed(std::string_view text) {
  auto result = batchtext::parse(text);
  EXPECT_TRUE(result) << text << (result ? "" : result.error().what);
  return result.value_or(Case{{Step{}}});
}

/// "line:column what" of a text that does not parse.
std::string error_of(std::string_view text) {
  const auto result = batchtext::parse(text);
  if (result) return "parses";
  return std::to_string(result.error().line) + ":" + std::to_string(result.error().column) + " " + result.error().what;
}

TEST(BatchText, an_empty_case_has_one_step_of_defaults) {
  EXPECT_EQ(parsed("attnfuzz 1"), Case{{Step{}}});
  EXPECT_EQ(batchtext::print(Case{{Step{}}}), "attnfuzz 1\n");
}

TEST(BatchText, reads_every_key) {
  const Case text = parsed(
      "# a comment\n\n  attnfuzz 1  # and one behind\r\ndecode_threshold 4\nworkspace_tokens 64\nchunk_policy packed\n"
      "window_left 7\nbatch 2q1s9\nnum_reqs 2\nquery_start_loc 0 1 2\nseq_lens 9 -9\nseq_lens_upper_bound 10 11\n"
      "num_actual_tokens 2\nmax_query_len 3\nmax_seq_len 20\nschedule_seed 7\nfail_call 3\n");
  Step step;
  step.config = {4, 64, 7, attn::ChunkPolicy::packed};
  step.requests = {{1, 9}, {1, 9}};
  step.num_reqs = 2;
  step.query_start_loc = {{0, 1, 2}};
  step.seq_lens = {Lens::raw, {9, -9}};
  step.seq_lens_upper_bound = {Lens::raw, {10, 11}};
  step.num_actual_tokens = 2;
  step.max_query_len = 3;
  step.max_seq_len = 20;
  step.schedule_seed = 7;
  step.fail_call = 3;
  EXPECT_EQ(text, Case{{step}});
  EXPECT_EQ(parsed(batchtext::print(text)), text);
}

TEST(BatchText, steps_are_apart) {
  const Case text = parsed("attnfuzz 1\nbatch q2\nthen\nthen\nbatch q1s5\n");
  ASSERT_EQ(text.steps.size(), 3u);
  EXPECT_EQ(text.steps[0].requests, (std::vector<Request>{{2, 2}}));
  EXPECT_TRUE(text.steps[1].requests.empty());
  EXPECT_EQ(batchtext::print(text), "attnfuzz 1\nbatch q2\nthen\nthen\nbatch q1s5\n");
}

// Two steps of speculative decodes used to be two decodes, then two extends: `then` put the settings back in silence.
TEST(BatchText, settings_hold_for_the_steps_that_follow) {
  const Case text = parsed("attnfuzz 1\ndecode_threshold 2\nbatch 2q2s9\nthen\nbatch 2q2s9\n");
  ASSERT_EQ(text.steps.size(), 2u);
  EXPECT_EQ(text.steps[1].config.decode_threshold, 2);
  EXPECT_EQ(batchtext::print(text), "attnfuzz 1\ndecode_threshold 2\nbatch 2q2s9\nthen\nbatch 2q2s9\n");
}

TEST(BatchText, a_step_sets_what_differs_from_the_one_before) {
  const std::string canonical =
      "attnfuzz 1\ndecode_threshold 4\nworkspace_tokens 64\nchunk_policy packed\nwindow_left 7\n"
      "then\nworkspace_tokens 32768\n"
      "then\n"
      "then\ndecode_threshold 1\nchunk_policy equal_share\nwindow_left none\n"
      "then\nwindow_left 0\n";
  const Case text = parsed(canonical);
  ASSERT_EQ(text.steps.size(), 5u);
  EXPECT_EQ(text.steps[0].config, (attn::Config{4, 64, 7, attn::ChunkPolicy::packed}));
  EXPECT_EQ(text.steps[1].config, (attn::Config{4, 32768, 7, attn::ChunkPolicy::packed}));
  EXPECT_EQ(text.steps[2].config, text.steps[1].config);
  EXPECT_EQ(text.steps[3].config, attn::Config{});
  EXPECT_EQ(text.steps[4].config.window_left, 0);
  EXPECT_EQ(batchtext::print(text), canonical);
}

TEST(BatchText, what_is_no_setting_is_of_one_step) {
  const Case text = parsed(
      "attnfuzz 1\nbatch 2q1s9\nnum_reqs 2\nquery_start_loc 0 1 2\nseq_lens 9 9\nseq_lens_upper_bound 9 9\n"
      "num_actual_tokens 2\nmax_query_len 3\nmax_seq_len 20\nschedule_seed 7\nfail_call 3\nthen\n");
  ASSERT_EQ(text.steps.size(), 2u);
  EXPECT_EQ(text.steps[1], Step{});
}

// An editor's mark in front was reported as "expected 'attnfuzz 1', found '???attnfuzz'".
TEST(BatchText, passes_over_a_byte_order_mark) {
  const Case text = parsed(
      "\xEF\xBB\xBF"
      "attnfuzz 1\nbatch q2\n");
  EXPECT_EQ(batchtext::print(text), "attnfuzz 1\nbatch q2\n");
  EXPECT_EQ(error_of("\xEF\xBB\xBF"), "1:1 empty, expected 'attnfuzz 1'");
  EXPECT_EQ(error_of("attnfuzz 1\n\xEF\xBB\xBF"
                     "batch q2"),
            "2:1 unknown key '\\xEF\\xBB\\xBFbatch'")
      << "only in front";
  EXPECT_EQ(error_of(std::string_view{"\xFF\xFE"
                                      "a\0t\0",
                                      6}),
            "1:1 the text is UTF-16, expected UTF-8 or ASCII");
  EXPECT_EQ(error_of(std::string_view{"\xFE\xFF"
                                      "\0a\0t",
                                      6}),
            "1:1 the text is UTF-16, expected UTF-8 or ASCII");
}

TEST(BatchText, says_that_there_are_no_offsets_at_all) {
  const Case text = parsed("attnfuzz 1\nbatch 2q1s9\nquery_start_loc none\n");
  EXPECT_EQ(text.steps[0].query_start_loc, std::vector<std::int32_t>{});
  EXPECT_EQ(batchtext::print(text), "attnfuzz 1\nbatch 2q1s9\nquery_start_loc none\n");
  EXPECT_EQ(error_of("attnfuzz 1\nquery_start_loc\n"), "2:16 query_start_loc takes numbers, none or batch");
  const Case implied = parsed("attnfuzz 1\nbatch 2q1s9\nquery_start_loc batch\n");
  EXPECT_EQ(batchtext::print(implied), "attnfuzz 1\nbatch 2q1s9\n");
}

TEST(BatchText, takes_the_batches_of_vllms_benchmarks) {
  const auto requests = [](std::string_view spec) { return batchtext::parse_requests(spec).value(); };
  EXPECT_EQ(requests("q2k"), (std::vector<Request>{{2048, 2048}}));
  EXPECT_EQ(requests("q1s1k"), (std::vector<Request>{{1, 1024}}));
  EXPECT_EQ(requests("2q1k_2q4s1k"), (std::vector<Request>{{1024, 1024}, {1024, 1024}, {4, 1024}, {4, 1024}}));
  EXPECT_EQ(requests("q1kv1k"), (std::vector<Request>{{1, 1024}}));
  EXPECT_EQ(requests("q1kkv3k"), (std::vector<Request>{{1024, 3072}}));
  EXPECT_EQ(requests("0q5_q1"), (std::vector<Request>{{1, 1}}));
  EXPECT_EQ(batchtext::print_requests(requests("8q1s1k_q16s4k_2q2k_q0")), "8q1s1k_q16s4k_2q2k_q0");
}

TEST(BatchText, prints_equal_neighbours_once_and_defaults_never) {
  EXPECT_EQ(
      batchtext::print(parsed("attnfuzz 1\ndecode_threshold 1\nworkspace_tokens 32768\nchunk_policy equal_share\n"
                              "window_left none\nseq_lens batch\nseq_lens_upper_bound none\nquery_start_loc batch\n"
                              "schedule_seed 0\n"
                              "batch q1s5_q1s5_2q1s5_q1024s1024\n")),
      "attnfuzz 1\nbatch 4q1s5_q1k\n");
}

TEST(BatchText, errors_point_at_what_is_wrong) {
  EXPECT_EQ(error_of(""), "1:1 empty, expected 'attnfuzz 1'");
  EXPECT_EQ(error_of("# nothing\n"), "1:1 empty, expected 'attnfuzz 1'");
  EXPECT_EQ(error_of("batch q1"), "1:1 expected 'attnfuzz 1', found 'batch'");
  EXPECT_EQ(error_of("attnfuzz 2"), "1:10 format version 2, this program reads 1");
  EXPECT_EQ(error_of("attnfuzz"), "1:9 expected a number, found ''");
  EXPECT_EQ(error_of("attnfuzz 1\nbatches q1"), "2:1 unknown key 'batches'");
  EXPECT_EQ(error_of("attnfuzz 1\n  batch 2q1s\n"), "2:13 expected a number, found ''");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1_x2"), "2:10 expected q<len> in a batch, found 'x2'");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1s5k7"), "2:12 unexpected '7' in a batch");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1kx5"), "2:10 unexpected 'x5' in a batch");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1 q2"), "2:10 unexpected 'q2' behind the value");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1\nbatch q2"), "3:1 second 'batch' in one step");
  EXPECT_EQ(error_of("attnfuzz 1\nchunk_policy fair"),
            "2:14 chunk_policy is equal_share, packed, mla or none, not 'fair'");
  EXPECT_EQ(error_of("attnfuzz 1\nseq_lens 1 two"), "2:12 expected a number, found 'two'");
  EXPECT_EQ(error_of("attnfuzz 1\nseq_lens 1x"), "2:11 unexpected 'x' in a number");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q\x01\x80"), "2:8 expected a number, found '\\x01\\x80'");
}

TEST(BatchText, numbers_end_with_int32) {
  EXPECT_EQ(parsed("attnfuzz 1\nmax_seq_len 2147483647").steps[0].max_seq_len, 2147483647);
  EXPECT_EQ(parsed("attnfuzz 1\nmax_seq_len -2147483648").steps[0].max_seq_len, -2147483647 - 1);
  EXPECT_EQ(error_of("attnfuzz 1\nmax_seq_len 2147483648"), "2:13 number above 2147483647");
  EXPECT_EQ(error_of("attnfuzz 1\nmax_seq_len -2147483649"), "2:14 number above 2147483648");
  EXPECT_EQ(error_of("attnfuzz 1\nmax_seq_len 99999999999999999999999"), "2:13 number above 2147483647");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch q1s2097152k"), "2:10 number above 2147483647");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch 2q1048576k"),
            "2:7 the batch has 2147483648 query tokens, more than offsets can hold");
}

TEST(BatchText, what_a_simulated_device_is_told_has_a_range) {
  const Step step = parsed("attnfuzz 1\nfail_call 2147483647\nschedule_seed 2147483647").steps[0];
  EXPECT_EQ(step.schedule_seed, 2147483647);
  EXPECT_EQ(step.fail_call, 2147483647);
  EXPECT_EQ(parsed("attnfuzz 1\nschedule_seed -0"), Case{{Step{}}});
  EXPECT_EQ(error_of("attnfuzz 1\nschedule_seed -1"), "2:15 number below 0");
  EXPECT_EQ(error_of("attnfuzz 1\nschedule_seed 2147483648"), "2:15 number above 2147483647");
  EXPECT_EQ(error_of("attnfuzz 1\nschedule_seed"), "2:14 expected a number, found ''");
  EXPECT_EQ(error_of("attnfuzz 1\n fail_call  0"), "2:13 number below 1");
  EXPECT_EQ(error_of("attnfuzz 1\nfail_call -2147483648"), "2:11 number below 1");
  EXPECT_EQ(error_of("attnfuzz 1\nfail_call 2147483648"), "2:11 number above 2147483647");
  EXPECT_EQ(error_of("attnfuzz 1\nfail_call none"), "2:11 expected a number, found 'none'");
  EXPECT_EQ(error_of("attnfuzz 1\nfail_call 1 2"), "2:13 unexpected '2' behind the value");
  EXPECT_EQ(batchtext::print(parsed("attnfuzz 1\nfail_call 2\nschedule_seed 5\nbatch q1\nthen\n")),
            "attnfuzz 1\nbatch q1\nschedule_seed 5\nfail_call 2\nthen\n")
      << "each step has its own";
}

TEST(BatchText, limits_are_met_and_no_more) {
  EXPECT_EQ(parsed("attnfuzz 1\nbatch 65536q1s9").steps[0].requests.size(), 65536u);
  EXPECT_EQ(error_of("attnfuzz 1\nbatch 65536q1s9_q1"), "2:17 more than 65536 requests in a batch");
  EXPECT_EQ(error_of("attnfuzz 1\nbatch 65537q1s9"), "2:7 number above 65536");
  std::string steps = "attnfuzz 1\n";
  for (int i = 1; i < 64; ++i) steps += "then\n";
  EXPECT_EQ(parsed(steps).steps.size(), 64u);
  EXPECT_EQ(error_of(steps + "then\n"), "65:1 more than 64 steps");
  std::string longest = "attnfuzz 1\n#";
  longest.resize(static_cast<std::size_t>(batchtext::max_text_bytes), ' ');
  EXPECT_EQ(error_of(longest), "parses");
  EXPECT_EQ(error_of(longest + "\n"), "parses");
  EXPECT_EQ(error_of(longest + "  "), "1:1 longer than 4194304 bytes");
  EXPECT_FALSE(batchtext::parse_requests(longest + " "));
}

TEST(BatchText, one_batch_has_errors_of_its_own) {
  const auto result = batchtext::parse_requests("8q1s1k_q");
  ASSERT_FALSE(result);
  EXPECT_EQ(batchtext::message(result.error(), "SPEC"), "SPEC:1:9: expected a number, found ''");
  EXPECT_EQ(batchtext::message(batchtext::parse_requests("q1 q2").error(), "SPEC"),
            "SPEC:1:3: unexpected ' q2' in a batch");
  EXPECT_EQ(batchtext::message(batchtext::parse_requests("").error(), "SPEC"),
            "SPEC:1:1: expected q<len> in a batch, found ''");
}

TEST(BatchText, every_drawn_case_prints_to_a_text_that_parses_to_it) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    properties::Random random{seed};
    Case drawn = properties::draw_case(random, 4);
    const auto kind = static_cast<attn::Error::Kind>(random.below(attn::Error::num_kinds));
    drawn.steps.push_back(properties::draw_malformed(random, kind, 1000));
    for (Step& step : drawn.steps) {
      if (random.chance(50)) step.schedule_seed = properties::clamp_length(random.below(std::int64_t{1} << 31));
      if (random.chance(50)) step.fail_call = properties::clamp_length(random.between(1, std::int64_t{1} << 31));
    }
    const std::string text = batchtext::print(drawn);
    const auto again = batchtext::parse(text);
    ASSERT_TRUE(again) << text;
    ASSERT_EQ(*again, drawn) << text;
    ASSERT_EQ(batchtext::print(*again), text);
  }
}

TEST(Arrays, hold_what_the_requests_imply) {
  const batchtext::Arrays arrays{parsed("attnfuzz 1\nbatch 2q1s9_q4s30").steps[0]};
  const attn::Batch& batch = arrays.batch();
  EXPECT_EQ(batch.num_reqs, 3);
  EXPECT_EQ(batch.num_actual_tokens, 6);
  EXPECT_EQ(batch.max_query_len, 4);
  EXPECT_EQ(batch.max_seq_len, 30);
  EXPECT_EQ(std::vector<std::int32_t>(batch.query_start_loc.begin(), batch.query_start_loc.end()),
            (std::vector<std::int32_t>{0, 1, 2, 6}));
  EXPECT_EQ(batch.seq_lens.size(), 3u);
  EXPECT_TRUE(batch.seq_lens_upper_bound.empty());
}

TEST(Arrays, take_overrides_as_they_are) {
  const batchtext::Arrays arrays{parsed("attnfuzz 1\nbatch 2q1s9\nquery_start_loc -2147483648 2147483647\nseq_lens "
                                        "none\nseq_lens_upper_bound batch\nnum_reqs 7")
                                     .steps[0]};
  EXPECT_EQ(arrays.batch().num_reqs, 7);
  EXPECT_EQ(arrays.batch().max_query_len, 2147483647) << "as far as int32 goes";
  EXPECT_TRUE(arrays.batch().seq_lens.empty());
  EXPECT_EQ(arrays.batch().seq_lens_upper_bound.size(), 2u);
  const batchtext::Arrays none{parsed("attnfuzz 1\nquery_start_loc none").steps[0]};
  EXPECT_TRUE(none.batch().query_start_loc.empty());
  EXPECT_EQ(none.batch().num_reqs, 0);
  EXPECT_EQ(none.batch().num_actual_tokens, 0);
}

/// The error of a step that names a count, else "built".
std::string refusal_of(std::string_view text) {
  const batchtext::Arrays arrays{parsed("attnfuzz 1\n" + std::string{text}).steps[0]};
  attn::MetadataBuilder builder;
  const auto built = builder.build(arrays.batch());
  return built ? "built" : attn::message(built.error());
}

// Two offsets for 32 rows used to be one request with 32 lengths, and the lengths were blamed.
TEST(Arrays, the_count_that_stands_alone_is_blamed) {
  EXPECT_EQ(refusal_of("batch 32q4s4\nquery_start_loc 0 128"),
            "offsets_count: query_start_loc has 2 entries, num_reqs + 1 is 33");
  EXPECT_EQ(refusal_of("batch 32q4s4\nquery_start_loc 0 128\nseq_lens none"),
            "offsets_count: query_start_loc has 2 entries, num_reqs + 1 is 33");
  EXPECT_EQ(refusal_of("batch 3q1s9\nquery_start_loc none"),
            "offsets_count: query_start_loc has 0 entries, num_reqs + 1 is 4");
  EXPECT_EQ(refusal_of("batch 3q1s9\nseq_lens 9 9"), "seq_lens_count: seq_lens has 2 entries, num_reqs is 3");
  EXPECT_EQ(refusal_of("batch 3q1s9\nseq_lens_upper_bound 9"),
            "upper_bound_count: seq_lens_upper_bound has 1 entries, num_reqs is 3");
  EXPECT_EQ(refusal_of("query_start_loc 0 1\nseq_lens 9 9 9\nseq_lens_upper_bound 9 9 9"),
            "offsets_count: query_start_loc has 2 entries, num_reqs + 1 is 4");
  EXPECT_EQ(refusal_of("query_start_loc 0 1 2 3\nseq_lens 9 9"),
            "seq_lens_count: seq_lens has 2 entries, num_reqs is 3");
  EXPECT_EQ(refusal_of("batch 3q1s9\nquery_start_loc 0 4\nseq_lens 9"), "built") << "all arrays are of one request";
  EXPECT_EQ(refusal_of("batch 3q1s9\nnum_reqs 2"), "offsets_count: query_start_loc has 4 entries, num_reqs + 1 is 3")
      << "what is given is taken";
}

}  // namespace
