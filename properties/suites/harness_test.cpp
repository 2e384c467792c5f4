// The harness' own promises: reports, reduction, mutation.
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "fuzz/mutate.hpp"
#include "properties/check.hpp"
#include "properties/edit.hpp"
#include "properties/random_batch.hpp"
#include "properties/reduce.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

// A target for the mutator to ask; nothing here runs it.
namespace fuzz {
const std::string_view target_name = "harness_test";
const Mutations target_mutations{};
}  // namespace fuzz

namespace {

using batchtext::Case;
using batchtext::Step;
using properties::Finding;

/// A fault that needs two extends with context, one of them of more than 100 tokens: stands in for one in the library.
std::optional<Finding> pretend(const Case& parsed) {
  for (const Step& step : parsed.steps) {
    int with_context = 0;
    bool is_long = false;
    for (const batchtext::Request& request : step.requests) {
      with_context += request.query_len > step.config.decode_threshold && request.seq_len > request.query_len;
      is_long |= request.seq_len - request.query_len > 100;
    }
    if (with_context >= 2 && is_long) return Finding{"C1", "claim", "where", "difference"};
    if (with_context == 1) return Finding{"C9", "another fault, which must not take the place of the first", "", ""};
  }
  return std::nullopt;
}

Case parsed(std::string_view text) { return batchtext::parse("attnfuzz 1\n" + std::string{text}).value(); }

const auto always = [](const properties::Reduction&) { return true; };

TEST(Reduce, finds_the_smallest_case_with_the_same_id) {
  const Case start = parsed(
      "decode_threshold 2\nworkspace_tokens 64\nwindow_left 9\nbatch 3q1s90_q16s80_q7s900_q9s17_4q12_3q0\nthen\n"
      "chunk_policy packed\nbatch 4q9s60");
  const auto reduction = properties::reduce(start, *pretend(start), pretend, always);
  EXPECT_EQ(reduction.finding.id, "C1");
  EXPECT_TRUE(reduction.complete);
  EXPECT_TRUE(reduction.repeats);
  EXPECT_GT(reduction.kept, 0);
  ASSERT_EQ(reduction.smallest.steps.size(), 1u);
  const Step& step = reduction.smallest.steps[0];
  EXPECT_EQ(step.config, attn::Config{});
  ASSERT_EQ(step.requests.size(), 2u);
  std::int32_t least = 2147483647;
  std::int32_t most = 0;
  for (const batchtext::Request& request : step.requests) {
    EXPECT_EQ(request.query_len, 2) << "one above the threshold";
    least = std::min(least, request.seq_len - request.query_len);
    most = std::max(most, request.seq_len - request.query_len);
  }
  EXPECT_EQ(least, 1);
  EXPECT_EQ(most, 101);
}

TEST(Reduce, keeps_of_schedule_and_fault_what_the_finding_needs) {
  const auto needs_both = [](const Case& parsed) -> std::optional<Finding> {
    const Step& step = parsed.steps[0];
    if (step.schedule_seed < 5 || step.fail_call.value_or(0) < 3) return std::nullopt;
    return Finding{"D6", "claim", "where", "difference"};
  };
  const auto needs_neither = [](const Case&) -> std::optional<Finding> { return Finding{"D1", "claim", "", ""}; };
  const Case start = parsed("schedule_seed 2147483647\nfail_call 2147483647");
  const Step both = properties::reduce(start, *needs_both(start), needs_both, always).smallest.steps[0];
  EXPECT_GE(both.schedule_seed, 5);
  EXPECT_LT(both.schedule_seed, 10) << "halved as often as it goes";
  EXPECT_EQ(both.fail_call, 3);
  EXPECT_EQ(properties::reduce(start, *needs_neither(start), needs_neither, always).smallest, Case{{Step{}}});
}

TEST(Reduce, takes_settings_back_that_have_to_be_the_same) {
  const auto needs_equal = [](const Case& parsed) -> std::optional<Finding> {
    if (parsed.steps.size() < 2 || !(parsed.steps[0].config == parsed.steps[1].config)) return std::nullopt;
    return Finding{"M4", "claim", "", ""};
  };
  const Case start = parsed("decode_threshold 4\nworkspace_tokens 64\nthen\n");
  EXPECT_EQ(properties::reduce(start, *needs_equal(start), needs_equal, always).smallest, (Case{{Step{}, Step{}}}));
}

TEST(Reduce, gets_past_counts_that_have_no_finding) {
  // Five requests have it and one, nothing between; near 2^31 half of a length has it not, and one below it has.
  const auto counts = [](const Case& parsed) -> std::optional<Finding> {
    const std::size_t count = parsed.steps[0].requests.size();
    if (count != 1 && count != 5) return std::nullopt;
    return Finding{"R1", "claim", "", ""};
  };
  const auto least = [](const Case& parsed) -> std::optional<Finding> {
    const auto& requests = parsed.steps[0].requests;
    if (requests.empty() || requests[0].query_len < 2147483000) return std::nullopt;
    return Finding{"S5", "claim", "", ""};
  };
  const Case five = parsed("batch 4q1s1k_q1");
  EXPECT_EQ(properties::reduce(five, *counts(five), counts, always).smallest.steps[0].requests.size(), 1u);
  const Case longest = parsed("batch q2147483647");
  const auto reduction = properties::reduce(longest, *least(longest), least, always);
  EXPECT_EQ(reduction.smallest.steps[0].requests[0].query_len, 2147483000);
  EXPECT_LT(reduction.tried, 2000);
}

TEST(Reduce, stops_when_told_and_keeps_what_it_has) {
  const Case start = parsed("batch q16s80_q7s900_q9s17_4q12");
  int left = 3;
  const auto reduction =
      properties::reduce(start, *pretend(start), pretend, [&](const properties::Reduction&) { return left-- > 0; });
  EXPECT_FALSE(reduction.complete);
  EXPECT_EQ(reduction.tried, 3);
  EXPECT_TRUE(reduction.repeats);
  EXPECT_TRUE(pretend(reduction.smallest));
}

TEST(Reduce, says_when_the_result_does_not_repeat) {
  const Case start = parsed("batch q16s80");
  int calls = 0;
  // Fails once, for the first smaller case, and then never again.
  const auto flaky = [&](const Case&) -> std::optional<Finding> {
    if (++calls > 1) return std::nullopt;
    return Finding{"C1", "", "", ""};
  };
  const auto reduction = properties::reduce(start, Finding{"C1", "", "", ""}, flaky, always);
  EXPECT_FALSE(reduction.repeats);
}

TEST(Report, shows_what_a_person_needs_in_order) {
  const Case shown = parsed("workspace_tokens 64\nbatch 2q1s90_q16s80_q12_q0s7");
  const Finding finding{"C1", "every context token is gathered exactly once", "chunk 3, extend 0", "5, expected 6"};
  const std::string report = properties::report(finding, shown, "attnfuzz check FILE", "4 of 9 kept");
  std::size_t at = 0;
  for (const char* part :
       {"FINDING C1: every context token", "chunk 3, extend 0", "5, expected 6", "workspace_tokens 64", "0-1", "decode",
        "extend", "prefill", "padding", "shrunk:  4 of 9 kept", "repeat:  attnfuzz check FILE",
        "corpus/regressions/C1_chunk_3__extend_0.batch", "batch 2q1s90_q16s80_q12_q0s7",
        "TEST(Regression, C1_chunk_3__extend_0)", "EXPECT_HOLDS"}) {
    const std::size_t found = report.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in\n" << report;
    at = found;
  }
}

TEST(Report, tells_what_a_simulated_device_was_told) {
  EXPECT_NE(properties::table(parsed("schedule_seed 5\nfail_call 2").steps[0]).find("schedule_seed 5, fail_call 2\n"),
            std::string::npos);
  EXPECT_NE(properties::table(parsed("schedule_seed 5").steps[0]).find("schedule_seed 5, fail_call -\n"),
            std::string::npos);
  EXPECT_EQ(properties::table(parsed("batch q1").steps[0]).find("schedule_seed"), std::string::npos);
}

TEST(Report, tells_malformed_arrays_as_they_are) {
  const Case shown = parsed("batch 2q1s9\nquery_start_loc 0 5 3\nseq_lens 1 2");
  EXPECT_NE(properties::table(shown.steps[0]).find("query_start_loc [0, 5, 3]"), std::string::npos);
  const Case many = parsed("batch 60q1s9\nnum_reqs -1");
  EXPECT_NE(properties::table(many.steps[0]).find("... 61 entries"), std::string::npos);
}

TEST(Report, cuts_long_tables) {
  Case shown{{Step{}}};
  for (std::int32_t i = 0; i < 500; ++i) shown.steps[0].requests.push_back({1, 100 + i});
  const std::string table = properties::table(shown.steps[0]);
  EXPECT_LT(std::count(table.begin(), table.end(), '\n'), 50);
  EXPECT_NE(table.find("... and 460 more requests"), std::string::npos) << table;
}

TEST(CheckText, takes_a_text_that_does_not_parse_for_a_finding) {
  const auto finding = properties::check_text("attnfuzz 1\nbatch 5");
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->id, "text");
  EXPECT_FALSE(properties::check_text("attnfuzz 1\nbatch q5s9"));
}

TEST(Edit, keeps_raw_lengths_in_step_with_requests) {
  Step step = parsed("batch q1s5_q2s9_q3s12\nseq_lens_upper_bound 6 10 13").steps[0];
  properties::drop_request(step, 1);
  EXPECT_EQ(step.seq_lens_upper_bound.values, (std::vector<std::int32_t>{6, 13}));
  properties::insert_request(step, 1, {4, 40});
  EXPECT_EQ(step.seq_lens_upper_bound.values, (std::vector<std::int32_t>{6, 40, 13}));
  properties::set_request(step, 1, {4, 44});
  EXPECT_EQ(step.seq_lens_upper_bound.values, (std::vector<std::int32_t>{6, 44, 13}));
  properties::swap_requests(step, 0, 2);
  EXPECT_EQ(step.seq_lens_upper_bound.values, (std::vector<std::int32_t>{13, 44, 6}));
  EXPECT_EQ(step.requests, (std::vector<batchtext::Request>{{3, 12}, {4, 44}, {1, 5}}));
  properties::put_in_order(step);
  EXPECT_EQ(step.requests, (std::vector<batchtext::Request>{{1, 5}, {3, 12}, {4, 44}}));
  EXPECT_EQ(step.seq_lens_upper_bound.values, (std::vector<std::int32_t>{6, 13, 44}));
}

TEST(Mutator, makes_legal_texts_of_any_bytes_within_the_size) {
  const fuzz::Mutations mutations{.max_steps = 4, .malformed_percent = 40};
  std::string text = "no text at all";
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    properties::Random random{seed};
    const auto max_size = static_cast<std::size_t>(random.between(16, 600));
    text = fuzz::mutate(text, max_size, mutations, random);
    ASSERT_LE(text.size(), max_size);
    const auto again = batchtext::parse(text);
    ASSERT_TRUE(again) << text << again.error().what;
    ASSERT_EQ(batchtext::print(*again), text) << "canonical";
    ASSERT_LE(again->steps.size(), 4u);
    if (seed % 97 == 0) text = "\xff\n" + text;
  }
}

TEST(Mutator, adds_requests_to_a_step_whose_settings_are_broken) {
  // A threshold of -1 makes the shortest extend one of no token, and divided by that (nightly, fuzz_reject).
  for (const std::string settings :
       {"decode_threshold -1", "decode_threshold -2147483648", "workspace_tokens -1", "window_left -5"})
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      properties::Random random{seed};
      const std::string text = fuzz::mutate("attnfuzz 1\n" + settings + "\nbatch q1\n", 400, {.max_steps = 2}, random);
      ASSERT_TRUE(batchtext::parse(text)) << text;
    }
}

TEST(Mutator, crosses_two_texts_into_a_legal_one) {
  const std::string a = "attnfuzz 1\nbatch 3q1s9_q7s40\n";
  const std::string b = "attnfuzz 1\nworkspace_tokens 8\nbatch q20s60_2q11\n";
  std::set<std::string> made;
  bool mixed = false;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    properties::Random random{seed};
    const std::string text = fuzz::cross_over(a, b, 400, fuzz::Mutations{}, random);
    const auto crossed = batchtext::parse(text);
    ASSERT_TRUE(crossed) << text;
    made.insert(text);
    mixed |= text.find("s9") != std::string::npos && text.find("q20s60") != std::string::npos;
  }
  EXPECT_GT(made.size(), 10u);
  EXPECT_TRUE(mixed);
}

TEST(Mutator, reaches_every_kind_of_change) {
  // From one text, what is different afterwards: requests, lengths, each setting, which lengths are given.
  const std::string start = "attnfuzz 1\nbatch 2q1s9_q7s40_q5\n";
  const Case before = batchtext::parse(start).value();
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    properties::Random random{seed};
    const Case after =
        batchtext::parse(
            fuzz::mutate(start, 500, {.max_steps = 3, .malformed_percent = 20, .fail_call_percent = 2}, random))
            .value();
    const Step& step = after.steps[0];
    if (after.steps.size() > 1) seen.insert("step");
    if (step.requests.size() > before.steps[0].requests.size()) seen.insert("more");
    if (step.requests.size() < before.steps[0].requests.size()) seen.insert("fewer");
    if (step.config.decode_threshold != 1) seen.insert("threshold");
    if (step.config.workspace_tokens != 32768) seen.insert("workspace");
    if (step.config.window_left) seen.insert("window");
    if (step.config.chunk_policy == attn::ChunkPolicy::packed) seen.insert("policy");
    if (step.seq_lens.source == batchtext::Lens::none) seen.insert("no lengths");
    if (step.seq_lens_upper_bound.source != batchtext::Lens::none) seen.insert("bound");
    if (step.query_start_loc) seen.insert(step.query_start_loc->empty() ? "no offsets" : "offsets");
    if (step.schedule_seed != 0) seen.insert("schedule");
    if (step.fail_call) seen.insert("fault");
    for (const auto& request : step.requests) {
      if (request.seq_len > 2147483000) seen.insert("huge");
      if (request.query_len == 0) seen.insert("padding");
    }
  }
  EXPECT_EQ(seen.size(), 15u) << testing::PrintToString(seen);
}

}  // namespace
