#include "attn/checked.hpp"
#include "attn/error.hpp"
#include "attn/metadata.hpp"
#include "attn/split.hpp"
#include "batchtext/batchtext.hpp"
#include "trace/request_trace.hpp"
#include "trace/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using trace::RequestTrace;
using trace::Row;
using trace::Scheduler;
using trace::SchedulerOptions;

// ---- The reader

constexpr std::int64_t second_ns = 1'000'000'000;

RequestTrace read(std::string_view text) {
  const auto trace = trace::parse_request_trace(text);
  if (trace) return *trace;
  ADD_FAILURE() << batchtext::message(trace.error(), "text");
  return {};
}

TEST(RequestTrace, azure_times_count_from_the_first_row) {
  const RequestTrace trace = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:17:03.9799600,4808,10\n"
      "2023-11-16 18:17:04.0319601,3180,8\n"
      "2023-11-17 00:00:00,1,1\n");
  // 18:17:03.97996 to midnight: 5 h 42 min 56.02004 s.
  const std::int64_t to_midnight_ns = (5 * 3600 + 42 * 60 + 56) * second_ns + 20'040'000;
  EXPECT_EQ(trace.requests,
            (std::vector<trace::Request>{{0, 4808, 10}, {52'000'100, 3180, 8}, {to_midnight_ns, 1, 1}}));
}

TEST(RequestTrace, mooncake_times_are_milliseconds) {
  const RequestTrace trace = read("timestamp_ms,input_length,output_length\n3000,6758,500\n3001,7322,490\n");
  EXPECT_EQ(trace.requests, (std::vector<trace::Request>{{0, 6758, 500}, {1'000'000, 7322, 490}}));
}

TEST(RequestTrace, time_zones_leap_days_and_nanoseconds_count) {
  const RequestTrace trace = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-02-28T23:59:59.999999999Z,1,1\n"
      "2024-02-29 00:00:00+00:00,2,1\n"
      "2024-02-29 02:00:01.5+02:00,3,1\n"
      "2024-02-28 19:00:02-05:00,4,1\n"
      "2024-03-01 00:00:00,5,1\n");
  std::vector<std::int64_t> times;
  for (const trace::Request& request : trace.requests) times.push_back(request.arrival_ns);
  EXPECT_EQ(times, (std::vector<std::int64_t>{0, 1, 1'500'000'001, 2'000'000'001, 86'400 * second_ns + 1}));
}

TEST(RequestTrace, columns_stand_in_any_order_with_others_between) {
  const RequestTrace trace = read(
      "output_length,hash_ids,input_length,timestamp_ms,model\n"
      "7,\"[1, 2, \"\"x\"\"]\",5,0,a\n"
      " 8 ,,\"6\", 1 ,b,more\n");
  EXPECT_EQ(trace.requests, (std::vector<trace::Request>{{0, 5, 7}, {1'000'000, 6, 8}}));
}

TEST(RequestTrace, line_ends_and_empty_last_lines_do_not_matter) {
  const std::string_view rows = "timestamp_ms,input_length,output_length\n1,2,3\n4,5,6";
  const RequestTrace plain = read(rows);
  std::string dos = "\xEF\xBB\xBF";
  for (const char c : rows) dos += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(read(std::string(rows) + "\n").requests, plain.requests);
  EXPECT_EQ(read(std::string(rows) + "\n\n \n").requests, plain.requests);
  EXPECT_EQ(read(dos).requests, plain.requests);
  EXPECT_EQ(read(dos + "\r\n\r\n").requests, plain.requests);
  EXPECT_EQ(plain.requests.size(), 2u);
}

TEST(RequestTrace, rows_are_ordered_by_arrival_and_ties_keep_their_order) {
  const RequestTrace trace = read("timestamp_ms,input_length,output_length\n9,1,1\n5,2,1\n9,3,1\n5,4,1\n");
  EXPECT_EQ(trace.requests, (std::vector<trace::Request>{{0, 2, 1}, {0, 4, 1}, {4'000'000, 1, 1}, {4'000'000, 3, 1}}));
}

TEST(RequestTrace, rows_of_nothing_are_counted) {
  const RequestTrace trace = read("timestamp_ms,input_length,output_length\n0,0,5\n1,7,0\n2,0,0\n3,2147483647,1\n");
  EXPECT_EQ(trace.requests, (std::vector<trace::Request>{{0, 7, 1}, {2'000'000, 2147483647, 1}}));
  EXPECT_EQ(trace.num_no_prompt, 2);
  EXPECT_EQ(trace.num_no_output, 1);
}

struct BadText {
  const char* name;
  std::string text;
  std::int32_t line;
  std::int32_t column;
  const char* what;
};

void PrintTo(const BadText& bad, std::ostream* out) { *out << bad.name; }

class RequestTraceError : public testing::TestWithParam<BadText> {};

TEST_P(RequestTraceError, names_line_column_and_reason) {
  const BadText& bad = GetParam();
  const auto trace = trace::parse_request_trace(bad.text);
  ASSERT_FALSE(trace.has_value());
  EXPECT_EQ(trace.error().line, bad.line);
  EXPECT_EQ(trace.error().column, bad.column);
  EXPECT_EQ(trace.error().what, bad.what);
}

const std::string mooncake = "timestamp_ms,input_length,output_length\n";
const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

INSTANTIATE_TEST_SUITE_P(
    Reader, RequestTraceError,
    testing::Values(
        BadText{"empty", "", 1, 1, "the file is empty; its first line names columns"},
        BadText{"only_line_ends", "\r\n\n", 1, 1, "the file is empty; its first line names columns"},
        BadText{"no_time", "input_length,output_length\n1,1\n", 1, 1,
                "no column of arrival time: TIMESTAMP or timestamp_ms"},
        BadText{"no_prompt", "timestamp_ms,output_length\n1,1\n", 1, 1,
                "no column of prompt tokens: ContextTokens or input_length"},
        BadText{"no_output", "timestamp_ms,input_length\n1,1\n", 1, 1,
                "no column of output tokens: GeneratedTokens or output_length"},
        BadText{"second_column", "timestamp_ms,input_length,ContextTokens,output_length\n1,1,1,1\n", 1, 27,
                "a second column of prompt tokens"},
        BadText{"no_rows", mooncake, 1, 1, "no rows below the names"},
        BadText{"no_prompts", mooncake + "1,0,4\n", 2, 1, "no row with a prompt"},
        BadText{"few_fields", mooncake + "1,2,3\n4,5\n", 3, 3, "the row ends after 2 of at least 3 fields"},
        BadText{"empty_line_inside", mooncake + "1,2,3\n\n4,5,6\n", 3, 1, "the row ends after 1 of at least 3 fields"},
        BadText{"word", mooncake + "1,2,three\n", 2, 5, "'three' is not a whole number"},
        BadText{"decimal", mooncake + "1,2.5,3\n", 2, 3, "'2.5' is not a whole number"},
        BadText{"plus", mooncake + "1,+2,3\n", 2, 3, "'+2' is not a whole number"},
        BadText{"missing_number", mooncake + "1,,3\n", 2, 3, "a whole number is missing"},
        BadText{"negative", mooncake + "1,2,-3\n", 2, 5, "'-3' is negative"},
        BadText{"above_int32", mooncake + "1,2147483648,3\n", 2, 3, "'2147483648' is above 2147483647"},
        BadText{"above_int64", mooncake + "1,2,99999999999999999999\n", 2, 5,
                "'99999999999999999999' is above 2147483647"},
        BadText{"below_int64", mooncake + "1,2,-99999999999999999999\n", 2, 5, "'-99999999999999999999' is negative"},
        BadText{"time_above_limit", mooncake + "2147483647001,2,3\n", 2, 1, "'2147483647001' is above 2147483647000"},
        BadText{"negative_time", mooncake + "-1,2,3\n", 2, 1, "'-1' is negative"},
        BadText{"open_quote", mooncake + "1,2,\"3\n", 2, 5, "a quote that does not end on its line"},
        BadText{"behind_quote", mooncake + "1,\"2\"x,3\n", 2, 3, "text behind the closing quote"},
        BadText{"long_word", mooncake + "1,2," + std::string(50, 'x') + "\n", 2, 5,
                "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is not a whole number"}));

class BadTime : public testing::TestWithParam<const char*> {};

TEST_P(BadTime, is_refused_where_it_stands) {
  const auto trace = trace::parse_request_trace(azure + GetParam() + ",1,1\n");
  ASSERT_FALSE(trace.has_value());
  EXPECT_EQ(trace.error().line, 2);
  EXPECT_EQ(trace.error().column, 1);
  EXPECT_EQ(trace.error().what, "'" + std::string(GetParam()) + "' is not a time like 2023-11-16 18:17:03.9799600");
}

INSTANTIATE_TEST_SUITE_P(Reader, BadTime,
                         testing::Values("", "12", "2023-11-16", "2023-02-29 00:00:00", "2023-13-01 00:00:00",
                                         "2023-00-01 00:00:00", "1969-12-31 23:59:59", "2201-01-01 00:00:00",
                                         "2023-11-16 24:00:00", "2023-11-16 23:60:00", "2023-11-16 23:59:60",
                                         "2023-11-16 1:00:00", "2023-11-16 01:00:00.", "2023-11-16 01:00:00.1234567890",
                                         "2023-11-16 01:00:00 PM", "2023-11-16 01:00:00+2", "2023/11/16 01:00:00"));

// ---- The scheduler

/// Watches a run from outside: what a step shows has to follow from the steps before it and from the trace.
class Watch {
 public:
  Watch(const RequestTrace& trace, const SchedulerOptions& options, Scheduler& scheduler)
      : trace_(trace), options_(options), scheduler_(scheduler), seen_(trace.requests.size()) {}

  /// False at the first step that fails: a broken scheduler breaks thousands.
  [[nodiscard]] bool run_to_end() {
    while (const batchtext::Step* step = scheduler_.next()) {
      check_step(*step);
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "at step " << num_steps_ << ": " << batchtext::print_requests(step->requests);
        return false;
      }
      ++num_steps_;
    }
    check_end();
    return !testing::Test::HasFailure();
  }

  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  [[nodiscard]] std::int64_t num_restarts() const { return num_restarts_; }
  [[nodiscard]] std::int64_t num_short_prefills() const { return num_short_prefills_; }
  [[nodiscard]] std::int64_t num_bounds_above() const { return num_bounds_above_; }
  [[nodiscard]] std::int64_t num_late_decodes() const { return num_late_decodes_; }
  [[nodiscard]] std::int64_t num_query_tokens() const { return num_query_tokens_; }

 private:
  struct Seen {
    bool started = false;
    std::int64_t step = -1;         // in which it took part last
    std::int32_t prefix_hit = 0;    // computed before its first step
    std::int32_t num_computed = 0;  // before that step
    std::int32_t query_len = 0;
    std::int32_t num_drafts = 0;

    [[nodiscard]] std::int32_t seq_len() const { return num_computed + query_len; }
  };

  void check_step(const batchtext::Step& step) {
    const auto rows = scheduler_.rows();
    ASSERT_EQ(rows.size(), step.requests.size());
    ASSERT_GT(rows.size(), 0u);
    ASSERT_LE(std::ssize(rows), options_.max_num_seqs);
    check_budgets(step);
    check_split(step);
    check_first_come_first_served(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_row(rows[i], step.requests[i]);
      if (options_.async_scheduling) check_bound(step, i);
      remember(rows[i], step.requests[i]);
    }
  }

  void check_budgets(const batchtext::Step& step) {
    std::int64_t num_tokens = 0;
    std::int64_t num_blocks = 0;
    for (const batchtext::Request& request : step.requests) {
      num_tokens += request.query_len;
      num_blocks += attn::ceil_div(request.seq_len, options_.block_size);
    }
    num_query_tokens_ += num_tokens;
    ASSERT_LE(num_tokens, options_.max_num_batched_tokens);
    ASSERT_LE(num_blocks, scheduler_.num_used_blocks());
    ASSERT_LE(scheduler_.num_used_blocks(), options_.num_gpu_blocks);
  }

  void check_split(const batchtext::Step& step) {
    ASSERT_EQ(step.config.decode_threshold, 1 + options_.num_speculative_tokens);
    const batchtext::Arrays arrays(step);
    const auto split = attn::split_decodes_extends_prefills(arrays.batch());
    ASSERT_TRUE(split.has_value()) << attn::message(split.error());
    ASSERT_EQ(split->num_decodes + split->num_extends + split->num_prefills, std::ssize(step.requests));
    ASSERT_EQ(split->num_padding, 0);
    // The order that reorder_batch promises: by what is computed, then by length.
    std::int32_t last_class = 0;
    for (const Row& row : scheduler_.rows()) {
      const auto& request = step.requests[static_cast<std::size_t>(&row - scheduler_.rows().data())];
      const bool is_short = request.query_len <= step.config.decode_threshold;
      const std::int32_t its_class = row.num_computed == 0 ? 2 : is_short ? 0 : 1;
      if (its_class == 2 && is_short) ++num_short_prefills_;
      ASSERT_GE(its_class, last_class);
      last_class = its_class;
    }
  }

  void check_first_come_first_served(std::span<const Row> rows) {
    std::int32_t newest = newest_;
    for (const Row& row : rows) {
      if (seen_[static_cast<std::size_t>(row.request)].started) continue;
      ASSERT_GT(row.request, newest_);
      newest = std::max(newest, row.request);
    }
    newest_ = newest;
  }

  void check_row(const Row& row, const batchtext::Request& request) {
    const trace::Request& wanted = trace_.requests[static_cast<std::size_t>(row.request)];
    const Seen& seen = seen_[static_cast<std::size_t>(row.request)];
    ASSERT_GE(scheduler_.clock_ns(), wanted.arrival_ns);
    ASSERT_GT(request.query_len, 0);
    ASSERT_EQ(request.seq_len, row.num_computed + request.query_len);
    ASSERT_LT(request.seq_len, scheduler_.max_len());
    ASSERT_GE(row.num_drafts, 0);
    ASSERT_LE(row.num_drafts, options_.num_speculative_tokens);
    ASSERT_NE(seen.step, num_steps_) << "request " << row.request << " is there twice";
    if (!seen.started) return check_start(row, wanted);
    const std::int32_t earliest = seen.seq_len() - seen.num_drafts;
    if (row.num_computed < earliest) return check_restart(row, seen);
    ASSERT_LE(row.num_computed, seen.seq_len());
    if (row.num_computed < seen.seq_len() && seen.step < num_steps_ - 1) ++num_late_decodes_;
  }

  void check_start(const Row& row, const trace::Request& wanted) {
    ASSERT_LT(row.num_computed, wanted.prompt_tokens) << "a prefix hit leaves nothing to compute";
    ASSERT_EQ(row.num_computed % options_.block_size, 0);
    ASSERT_EQ(row.num_drafts, 0);
    if (options_.prefix_hit_rate == 0) {
      ASSERT_EQ(row.num_computed, 0);
    }
  }

  void check_restart(const Row& row, const Seen& seen) {
    ++num_restarts_;
    ASSERT_EQ(row.num_computed, seen.prefix_hit) << "request " << row.request << " lost tokens";
    ASSERT_EQ(row.num_drafts, 0);
  }

  void check_bound(const batchtext::Step& step, std::size_t i) {
    const batchtext::Request& request = step.requests[i];
    const Row& row = scheduler_.rows()[i];
    const Seen& seen = seen_[static_cast<std::size_t>(row.request)];
    const std::int32_t bound = step.seq_lens_upper_bound.values.at(i);
    const bool goes_on = seen.started && seen.step == num_steps_ - 1 && row.num_computed >= seen.prefix_hit + 1;
    // Every draft of the step before accepted.
    const std::int32_t expected = goes_on ? seen.seq_len() + request.query_len : request.seq_len;
    ASSERT_EQ(bound, std::min(expected, scheduler_.max_len()));
    if (request.query_len > step.config.decode_threshold) {
      ASSERT_EQ(bound, request.seq_len);
    }
    if (bound > request.seq_len) ++num_bounds_above_;
  }

  void remember(const Row& row, const batchtext::Request& request) {
    Seen& seen = seen_[static_cast<std::size_t>(row.request)];
    if (!seen.started) seen.prefix_hit = row.num_computed;
    seen = {true, num_steps_, seen.prefix_hit, row.num_computed, request.query_len, row.num_drafts};
  }

  void check_end() {
    std::int64_t num_completed = 0;
    std::int64_t num_output = 0;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      const trace::Request& wanted = trace_.requests[i];
      const bool fits = wanted.prompt_tokens < scheduler_.max_len();
      ASSERT_EQ(seen_[i].started, fits) << "request " << i;
      if (!fits) continue;
      ++num_completed;
      const std::int32_t output = std::min(wanted.output_tokens, scheduler_.max_len() - wanted.prompt_tokens);
      num_output += output;
      // The last output token is sampled and never computed; drafts in the last step may reach beyond it.
      const Seen& last = seen_[i];
      ASSERT_LT(last.seq_len() - last.num_drafts, wanted.prompt_tokens + output) << "request " << i;
      ASSERT_GE(last.seq_len() + 1, wanted.prompt_tokens + output) << "request " << i;
    }
    const trace::Counters& counters = scheduler_.counters();
    ASSERT_EQ(counters.num_steps, num_steps_);
    ASSERT_EQ(counters.num_completed, num_completed);
    ASSERT_EQ(counters.num_completed + counters.num_rejected, std::ssize(trace_.requests));
    ASSERT_EQ(counters.num_output_tokens, num_output);
    ASSERT_EQ(counters.num_preemptions, num_restarts_);
    ASSERT_EQ(scheduler_.num_used_blocks(), 0);
    ASSERT_EQ(scheduler_.next(), nullptr);
  }

  const RequestTrace& trace_;
  const SchedulerOptions& options_;
  Scheduler& scheduler_;
  std::vector<Seen> seen_;
  std::int32_t newest_ = -1;
  std::int64_t num_steps_ = 0;
  std::int64_t num_restarts_ = 0;
  std::int64_t num_short_prefills_ = 0;
  std::int64_t num_bounds_above_ = 0;
  std::int64_t num_late_decodes_ = 0;  // missed a step behind one that rejected drafts
  std::int64_t num_query_tokens_ = 0;
};

Scheduler make(const RequestTrace& trace, const SchedulerOptions& options) {
  auto scheduler = Scheduler::make(trace, options);
  if (!scheduler) throw std::runtime_error(scheduler.error());
  return std::move(*scheduler);
}

/// `count` requests, one every `gap_ns`, of drawn lengths.
RequestTrace drawn_trace(std::int32_t count, std::int64_t gap_ns, std::int32_t longest_prompt,
                         std::int32_t longest_output) {
  RequestTrace trace;
  trace::Random random(7, 0);
  for (std::int32_t i = 0; i < count; ++i)
    trace.requests.push_back({i * gap_ns, static_cast<std::int32_t>(1 + random.below(longest_prompt)),
                              static_cast<std::int32_t>(1 + random.below(longest_output))});
  return trace;
}

/// A small server under load.
SchedulerOptions small_server() {
  SchedulerOptions options;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 8;
  options.max_model_len = 512;
  options.num_gpu_blocks = 1000;
  options.step_base_us = 1000;
  options.step_token_ns = 0;
  return options;
}

struct Shape {
  std::vector<batchtext::Request> requests;
  std::vector<std::int32_t> ids;

  friend bool operator==(const Shape&, const Shape&) = default;
};

std::vector<Shape> all_shapes(const RequestTrace& trace, const SchedulerOptions& options) {
  std::vector<Shape> shapes;
  Scheduler scheduler = make(trace, options);
  while (const batchtext::Step* step = scheduler.next()) {
    // The longest of these runs has some thousand steps; one that stands still would fill the memory.
    if (shapes.size() > 100'000) throw std::runtime_error("the run does not end");
    shapes.push_back({step->requests, {}});
    for (const Row& row : scheduler.rows()) shapes.back().ids.push_back(row.request);
  }
  return shapes;
}

std::vector<std::string> all_steps(const RequestTrace& trace, const SchedulerOptions& options) {
  std::vector<std::string> steps;
  for (const Shape& shape : all_shapes(trace, options)) steps.push_back(batchtext::print_requests(shape.requests));
  return steps;
}

TEST(Scheduler, a_lone_request_prefills_in_pieces_and_decodes) {
  const RequestTrace trace{{{5 * second_ns, 150, 3}}, 0, 0};
  EXPECT_EQ(all_steps(trace, small_server()),
            (std::vector<std::string>{"q64", "q64s128", "q22s150", "q1s151", "q1s152"}));
}

TEST(Scheduler, decodes_come_before_prompts_for_the_budget) {
  const RequestTrace trace{{{0, 10, 3}, {1, 100, 2}}, 0, 0};
  EXPECT_EQ(all_steps(trace, small_server()),
            (std::vector<std::string>{"q10", "q1s11_q63", "q1s12_q37s100", "q1s101"}));
}

TEST(Scheduler, idle_gaps_are_skipped) {
  const RequestTrace trace{{{0, 4, 1}, {3600 * second_ns, 4, 1}}, 0, 0};
  Scheduler scheduler = make(trace, small_server());
  ASSERT_NE(scheduler.next(), nullptr);
  ASSERT_NE(scheduler.next(), nullptr);
  EXPECT_EQ(scheduler.clock_ns(), 3600 * second_ns);
  EXPECT_EQ(scheduler.next(), nullptr);
  EXPECT_EQ(scheduler.counters().num_steps, 2);
  EXPECT_EQ(scheduler.clock_ns(), 3600 * second_ns + 1'000'000);
}

TEST(Scheduler, a_step_takes_its_base_and_its_tokens) {
  SchedulerOptions options = small_server();
  options.step_base_us = 5;
  options.step_token_ns = 7;
  const RequestTrace trace{{{0, 60, 2}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  while (scheduler.next() != nullptr) {
  }
  EXPECT_EQ(scheduler.clock_ns(), 2 * 5000 + (60 + 1) * 7);
}

TEST(Scheduler, places_in_the_batch_outlive_steps_and_gaps_are_filled_from_the_end) {
  // Requests 0 to 3 decode; 1 ends first, and 3 takes its place.
  const RequestTrace trace{{{0, 4, 5}, {0, 4, 2}, {0, 4, 5}, {0, 4, 5}}, 0, 0};
  const auto shapes = all_shapes(trace, small_server());
  ASSERT_EQ(shapes.size(), 5u);
  EXPECT_EQ(shapes[0].ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(shapes[1].ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(shapes[2].ids, (std::vector<std::int32_t>{0, 3, 2}));
  EXPECT_EQ(shapes[3].ids, (std::vector<std::int32_t>{0, 3, 2}));
}

TEST(Scheduler, no_more_requests_run_than_max_num_seqs) {
  SchedulerOptions options = small_server();
  options.max_num_seqs = 3;
  const RequestTrace trace = drawn_trace(60, 0, 40, 20);
  Scheduler scheduler = make(trace, options);
  std::size_t most = 0;
  while (scheduler.next() != nullptr) most = std::max(most, scheduler.rows().size());
  EXPECT_EQ(most, 3u);
  Scheduler again = make(trace, options);
  EXPECT_TRUE(Watch(trace, options, again).run_to_end());
}

TEST(Scheduler, without_preemption_every_token_is_computed_once) {
  const RequestTrace trace = drawn_trace(200, 3'000'000, 300, 30);
  const SchedulerOptions options = small_server();
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_EQ(watch.num_restarts(), 0);
  std::int64_t num_tokens = 0;
  for (const trace::Request& request : trace.requests) num_tokens += request.prompt_tokens + request.output_tokens - 1;
  EXPECT_EQ(watch.num_query_tokens(), num_tokens);
}

TEST(Scheduler, the_last_to_run_is_preempted_when_blocks_run_out) {
  SchedulerOptions options = small_server();
  options.num_gpu_blocks = 4;
  const RequestTrace trace{{{0, 31, 4}, {0, 31, 4}}, 0, 0};
  // Both fill two blocks with their 32nd token; the 33rd of the first takes one of the second's away. That computes its
  // prompt and the two tokens it has generated again when the first is done.
  EXPECT_EQ(all_steps(trace, options), (std::vector<std::string>{"2q31", "2q1s32", "q1s33", "q1s34", "q33", "q1s34"}));
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_EQ(watch.num_restarts(), 1);
  EXPECT_EQ(scheduler.counters().num_preempted_tokens, 32);
}

TEST(Scheduler, a_step_that_preempts_admits_nobody) {
  SchedulerOptions options = small_server();
  options.num_gpu_blocks = 4;
  options.long_prefill_token_threshold = 16;
  const RequestTrace trace{{{0, 31, 4}, {0, 31, 4}}, 0, 0};
  // The preempted request's first piece would fit the block that is left in the very step, and starts in the next.
  EXPECT_EQ(all_steps(trace, options),
            (std::vector<std::string>{"2q16", "2q15s31", "2q1s32", "q1s33", "q1s34_q16", "q16s32", "q1s33", "q1s34"}));
}

TEST(Scheduler, blocks_are_kept_for_the_tokens_a_drafter_writes_ahead) {
  SchedulerOptions options = small_server();
  options.num_speculative_tokens = 3;
  const RequestTrace trace{{{0, 10, 9}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  ASSERT_NE(scheduler.next(), nullptr);
  EXPECT_EQ(scheduler.num_used_blocks(), 1);
  // 10 + 4 tokens in the step, 3 drafts for the next one: the 17th is in a second block.
  ASSERT_NE(scheduler.next(), nullptr);
  EXPECT_EQ(scheduler.num_used_blocks(), 2);
}

TEST(Scheduler, with_few_blocks_every_request_still_completes) {
  SchedulerOptions options = small_server();
  options.num_gpu_blocks = 33;
  const RequestTrace trace = drawn_trace(300, 1'000'000, 300, 200);
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_restarts(), 50);
  EXPECT_EQ(scheduler.counters().num_completed, 300);
}

TEST(Scheduler, a_cache_of_one_request_runs_one_after_the_other) {
  SchedulerOptions options = small_server();
  options.max_model_len = 64;
  options.num_gpu_blocks = 4;
  const RequestTrace trace{{{0, 63, 1}, {0, 63, 5}, {0, 2, 62}, {0, 64, 1}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  ASSERT_TRUE(Watch(trace, options, scheduler).run_to_end());
  EXPECT_EQ(scheduler.counters().num_completed, 3);
  EXPECT_EQ(scheduler.counters().num_rejected, 1);
  EXPECT_EQ(scheduler.counters().num_truncated, 1);
}

TEST(Scheduler, requests_longer_than_the_cache_are_rejected) {
  SchedulerOptions options = small_server();
  options.num_gpu_blocks = 2;
  const RequestTrace trace{{{0, 31, 9}, {0, 32, 1}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  EXPECT_EQ(scheduler.max_len(), 32);
  ASSERT_TRUE(Watch(trace, options, scheduler).run_to_end());
  EXPECT_EQ(scheduler.counters().num_rejected, 1);
  EXPECT_EQ(scheduler.counters().num_output_tokens, 1);
}

TEST(Scheduler, drafts_are_proposed_accepted_and_cut) {
  SchedulerOptions options = small_server();
  options.num_speculative_tokens = 3;
  options.draft_acceptance_rate = 1;
  const RequestTrace trace{{{0, 10, 9}}, 0, 0};
  EXPECT_EQ(all_steps(trace, options), (std::vector<std::string>{"q10", "q4s14", "q4s18"}));
  options.draft_acceptance_rate = 0;
  EXPECT_EQ(all_steps({{{0, 10, 3}}, 0, 0}, options), (std::vector<std::string>{"q10", "q4s14", "q4s15"}));
  // Drafts end before the longest length.
  options.max_model_len = 14;
  EXPECT_EQ(all_steps({{{0, 10, 9}}, 0, 0}, options), (std::vector<std::string>{"q10", "q3s13", "q2s13", "q1s13"}));
}

TEST(Scheduler, a_budget_cuts_drafts_and_leaves_requests_out) {
  SchedulerOptions options = small_server();
  options.max_num_batched_tokens = 10;
  options.num_speculative_tokens = 3;
  options.async_scheduling = true;
  const RequestTrace trace = drawn_trace(40, 0, 12, 30);
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_short_prefills(), 0);
}

TEST(Scheduler, the_bound_of_a_request_that_missed_a_step_is_exact) {
  // The pieces are 2 2 2, 1 2 2 and 1 for the last prompt, 2 1 1 and 2 for its decode, whose draft is rejected; then
  // the three in front want 2 each, and it waits until the first of them ends.
  SchedulerOptions options = small_server();
  options.max_num_batched_tokens = 6;
  options.max_num_seqs = 6;
  options.num_speculative_tokens = 1;
  options.draft_acceptance_rate = 0;
  options.long_prefill_token_threshold = 2;
  options.async_scheduling = true;
  const RequestTrace trace{{{0, 3, 3}, {0, 5, 9}, {0, 5, 9}, {0, 1, 4}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_EQ(watch.num_late_decodes(), 1);
}

TEST(Scheduler, acceptance_follows_the_rate) {
  SchedulerOptions options = small_server();
  options.num_speculative_tokens = 1;
  options.draft_acceptance_rate = 0.25;
  const RequestTrace trace = drawn_trace(400, 10'000'000, 20, 100);
  Scheduler scheduler = make(trace, options);
  ASSERT_TRUE(Watch(trace, options, scheduler).run_to_end());
  const auto& counters = scheduler.counters();
  ASSERT_GT(counters.num_draft_tokens, 10'000);
  // More than six standard deviations (0.0043) away would be no 0.25.
  EXPECT_NEAR(static_cast<double>(counters.num_accepted_tokens) / static_cast<double>(counters.num_draft_tokens), 0.25,
              0.026);
}

TEST(Scheduler, prefix_hits_are_whole_blocks_and_leave_a_token) {
  SchedulerOptions options = small_server();
  options.prefix_hit_rate = 1;
  options.prefix_hit_fraction = 1;
  options.block_size = 1;
  const RequestTrace trace = drawn_trace(500, 10'000'000, 5, 2);
  Scheduler scheduler = make(trace, options);
  ASSERT_TRUE(Watch(trace, options, scheduler).run_to_end());
  EXPECT_GT(scheduler.counters().num_prefix_hit_tokens, 0);

  options.block_size = 16;
  const RequestTrace longer = drawn_trace(500, 10'000'000, 400, 2);
  Scheduler blocks = make(longer, options);
  Watch watch(longer, options, blocks);
  ASSERT_TRUE(watch.run_to_end());
  std::int64_t num_tokens = 0;
  for (const trace::Request& request : longer.requests) num_tokens += request.prompt_tokens + request.output_tokens - 1;
  EXPECT_EQ(watch.num_query_tokens() + blocks.counters().num_prefix_hit_tokens, num_tokens);
}

TEST(Scheduler, one_request_draws_the_same_however_others_run) {
  SchedulerOptions options = small_server();
  options.prefix_hit_rate = 0.5;
  const RequestTrace trace = drawn_trace(100, 1'000'000, 400, 20);
  const auto hits = [&] {
    std::vector<std::int32_t> computed(trace.requests.size(), -1);
    Scheduler scheduler = make(trace, options);
    while (scheduler.next() != nullptr)
      for (const Row& row : scheduler.rows()) {
        auto& first = computed[static_cast<std::size_t>(row.request)];
        if (first < 0) first = row.num_computed;
      }
    return computed;
  };
  const auto wide = hits();
  options.max_num_seqs = 2;
  EXPECT_EQ(hits(), wide);
  options.seed = 1;
  EXPECT_NE(hits(), wide);
}

TEST(Scheduler, the_seed_alone_decides) {
  SchedulerOptions options = small_server();
  options.num_speculative_tokens = 2;
  options.prefix_hit_rate = 0.3;
  options.num_gpu_blocks = 60;
  const RequestTrace trace = drawn_trace(200, 2'000'000, 300, 60);
  const auto first = all_shapes(trace, options);
  EXPECT_EQ(all_shapes(trace, options), first);
  options.seed = 12345;
  EXPECT_NE(all_shapes(trace, options), first);
}

TEST(Scheduler, long_prompts_are_cut_at_the_threshold) {
  SchedulerOptions options = small_server();
  options.long_prefill_token_threshold = 24;
  const RequestTrace trace{{{0, 60, 1}, {0, 30, 1}}, 0, 0};
  EXPECT_EQ(all_steps(trace, options), (std::vector<std::string>{"2q24", "q24s48_q6s30", "q12s60"}));
}

TEST(Scheduler, without_chunked_prefill_prompts_stay_whole) {
  SchedulerOptions options = small_server();
  options.enable_chunked_prefill = false;
  options.max_num_batched_tokens = 512;
  options.num_gpu_blocks = 40;
  const RequestTrace trace = drawn_trace(200, 1'000'000, 400, 60);
  Scheduler scheduler = make(trace, options);
  while (const batchtext::Step* step = scheduler.next())
    for (const batchtext::Request& request : step->requests)
      ASSERT_TRUE(request.query_len == 1 || request.query_len == request.seq_len);
  Scheduler again = make(trace, options);
  Watch watch(trace, options, again);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_restarts(), 0);
}

TEST(Scheduler, bounds_take_every_draft_for_accepted) {
  SchedulerOptions options = small_server();
  options.async_scheduling = true;
  options.num_speculative_tokens = 3;
  options.num_gpu_blocks = 50;
  const RequestTrace trace = drawn_trace(300, 2'000'000, 300, 60);
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_bounds_above(), 1000);
  EXPECT_GT(watch.num_restarts(), 0);
}

TEST(Scheduler, short_first_prefills_never_disturb_the_order) {
  // A threshold of 9 calls most prompts short; a small budget cuts the others into short first pieces.
  SchedulerOptions options = small_server();
  options.num_speculative_tokens = 8;
  options.max_num_batched_tokens = 30;
  options.num_gpu_blocks = 34;
  const RequestTrace trace = drawn_trace(500, 500'000, 40, 30);
  Scheduler scheduler = make(trace, options);
  Watch watch(trace, options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_short_prefills(), 100);
}

TEST(Scheduler, a_run_of_no_time_schedules_everything_at_once) {
  SchedulerOptions options = small_server();
  options.step_base_us = 0;
  const RequestTrace trace = drawn_trace(20, 1000, 10, 10);
  Scheduler scheduler = make(trace, options);
  EXPECT_TRUE(Watch(trace, options, scheduler).run_to_end());
}

TEST(Scheduler, a_clock_at_its_end_stands_still) {
  SchedulerOptions options = small_server();
  options.step_base_us = 10'000'000;
  const RequestTrace trace{{{std::int64_t{1} << 62, 4, 5}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  EXPECT_TRUE(Watch(trace, options, scheduler).run_to_end());
  EXPECT_EQ(scheduler.clock_ns(), std::int64_t{1} << 62);
}

TEST(Scheduler, lengths_up_to_int32_do_not_overflow) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 2147483647;
  options.max_num_seqs = 1;
  options.max_model_len = 2147483647;
  options.block_size = 1;
  options.num_gpu_blocks = 2147483647;
  options.num_speculative_tokens = 1000;
  options.draft_acceptance_rate = 1;
  const RequestTrace trace{{{0, 2147483640, 2147483647}, {0, 2147483647, 1}}, 0, 0};
  Scheduler scheduler = make(trace, options);
  ASSERT_TRUE(Watch(trace, options, scheduler).run_to_end());
  EXPECT_EQ(scheduler.counters().num_output_tokens, 7);
  EXPECT_EQ(scheduler.counters().num_rejected, 1);
}

TEST(SchedulerOptions, those_that_make_no_sense_are_named) {
  const auto reason = [](auto change) {
    SchedulerOptions options;
    change(options);
    const auto scheduler = Scheduler::make({{{0, 1, 1}}, 0, 0}, options);
    return scheduler ? std::string("fine") : scheduler.error();
  };
  using O = SchedulerOptions;
  EXPECT_EQ(reason([](O&) {}), "fine");
  EXPECT_EQ(reason([](O& o) { o.max_num_batched_tokens = 0; }), "max_num_batched_tokens is 0, not in 1 to 2147483647");
  EXPECT_EQ(reason([](O& o) { o.max_num_seqs = 65537; }), "max_num_seqs is 65537, not in 1 to 65536");
  EXPECT_EQ(reason([](O& o) { o.max_model_len = 1; }), "max_model_len is 1, not in 2 to 2147483647");
  EXPECT_EQ(reason([](O& o) { o.block_size = 0; }), "block_size is 0, not in 1 to 2147483647");
  EXPECT_EQ(reason([](O& o) { o.num_gpu_blocks = 0; }), "num_gpu_blocks is 0, not in 1 to 134217727");
  EXPECT_EQ(reason([](O& o) { o.num_gpu_blocks = 134217728; }), "num_gpu_blocks is 134217728, not in 1 to 134217727");
  EXPECT_EQ(reason([](O& o) { o.num_speculative_tokens = -1; }), "num_speculative_tokens is -1, not in 0 to 8191");
  EXPECT_EQ(reason([](O& o) { o.step_token_ns = -1; }), "step_token_ns is -1, not in 0 to 1000000");
  EXPECT_EQ(reason([](O& o) { o.window_left = -1; }), "window_left is -1, not in 0 to 2147483647");
  EXPECT_EQ(reason([](O& o) { o.draft_acceptance_rate = 1.01; }), "draft_acceptance_rate is not in 0 to 1");
  EXPECT_EQ(reason([](O& o) { o.prefix_hit_rate = std::nan(""); }), "prefix_hit_rate is not in 0 to 1");
  EXPECT_EQ(reason([](O& o) { o.prefix_hit_fraction = -0.1; }), "prefix_hit_fraction is not in 0 to 1");
  EXPECT_EQ(reason([](O& o) { o.max_num_batched_tokens = 512; }),
            "max_num_batched_tokens is 512, below max_num_seqs, 1024");
  EXPECT_EQ(reason([](O& o) { o.enable_chunked_prefill = false; }),
            "without chunked prefill max_num_batched_tokens, 8192, has to reach the longest length, 131072: lower "
            "max_model_len or raise it");
}

TEST(Scheduler, a_trace_of_nothing_that_fits_has_no_steps) {
  SchedulerOptions options;
  options.max_model_len = 8;
  Scheduler scheduler = make({{{0, 8, 1}}, 0, 0}, options);
  EXPECT_EQ(scheduler.next(), nullptr);
  EXPECT_EQ(scheduler.counters().num_rejected, 1);
}

// ---- Real traces

struct RealRun {
  const char* name;
  const char* file;
  SchedulerOptions options;
};

void PrintTo(const RealRun& run, std::ostream* out) { *out << run.name; }

std::vector<RealRun> real_runs() {
  SchedulerOptions few_blocks;
  few_blocks.num_gpu_blocks = 2048;
  few_blocks.step_token_ns = 100'000;
  SchedulerOptions drafts;
  drafts.num_speculative_tokens = 3;
  drafts.async_scheduling = true;
  SchedulerOptions everything = drafts;
  everything.num_gpu_blocks = 9000;
  everything.max_num_batched_tokens = 2048;
  everything.max_num_seqs = 64;
  everything.prefix_hit_rate = 0.5;
  everything.long_prefill_token_threshold = 1000;
  everything.step_base_us = 20'000;
  std::vector<RealRun> runs;
  for (const char* file : {"azure_llm_2023_code.csv", "azure_llm_2023_conv.csv", "mooncake_conversation.csv"}) {
    runs.push_back({"defaults", file, {}});
    runs.push_back({"few_blocks", file, few_blocks});
    runs.push_back({"drafts", file, drafts});
    runs.push_back({"everything", file, everything});
  }
  return runs;
}

class RealTrace : public testing::TestWithParam<RealRun> {};

TEST_P(RealTrace, every_step_of_its_first_requests_splits) {
  const std::filesystem::path path =
      std::filesystem::path(ATTNFUZZ_SOURCE_DIR) / ".." / "shared" / "traces" / GetParam().file;
  std::ifstream in(path, std::ios::binary);
  if (!in) GTEST_SKIP() << path << " is not there; the traces are not part of the project";
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  RequestTrace trace = read(text);
  constexpr std::size_t num_requests = 2000;
  ASSERT_GE(trace.requests.size(), num_requests);
  trace.requests.resize(num_requests);

  Scheduler scheduler = make(trace, GetParam().options);
  Watch watch(trace, GetParam().options, scheduler);
  ASSERT_TRUE(watch.run_to_end());
  EXPECT_GT(watch.num_steps(), 1000);
}

INSTANTIATE_TEST_SUITE_P(Traces, RealTrace, testing::ValuesIn(real_runs()), [](const auto& instance) {
  const std::string file = instance.param.file;
  return file.substr(0, file.find('.')) + "_" + instance.param.name;
});

}  // namespace
