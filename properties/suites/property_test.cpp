// The invariants on drawn batches, under RapidCheck: it draws, and shrinks what fails.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"
#include "properties/edit.hpp"
#include "properties/errors.hpp"
#include "properties/random_batch.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

namespace {

using batchtext::Case;
using batchtext::Step;
using Clock = std::chrono::steady_clock;

/// Entries a drawn batch may produce; a case then costs milliseconds under sanitizers at most.
constexpr std::int64_t max_entries = std::int64_t{1} << 15;

/// Cases of one property, unless RC_PARAMS says otherwise. The seed is fixed so that two runs of ci/test see the same;
/// a night draws its own through RC_PARAMS.
const int configured = setenv("RC_PARAMS", "seed=20261130 max_success=10000", 0);

/// Drawn from a seed and shrunk as batches, so that every case on the way is one a person could have written.
rc::Gen<Case> cases(int max_steps) {
  auto seeds = rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>()));
  auto drawn = rc::gen::map(std::move(seeds), [max_steps](std::uint64_t seed) {
    properties::Random random{seed};
    return properties::draw_case(random, max_steps);
  });
  return rc::gen::shrink(std::move(drawn),
                         [](const Case& parsed) { return rc::seq::fromContainer(properties::smaller_cases(parsed)); });
}

/// Says whether a case holds, and keeps shrinking honest: the case that failed is written and printed before it is
/// shrunk, its invariant stays the same on the way, and the way has an end.
class Judge {
 public:
  Judge(std::string name, std::string_view families) : name_(std::move(name)), families_(families) {}

  bool holds(const Case& parsed) {
    if (id_ && Clock::now() > deadline_) return true;
    const auto finding = properties::check_case(parsed, {.families = families_, .max_entries = max_entries});
    if (!finding || (id_ && *id_ != finding->id)) return true;
    if (!id_) keep(parsed, *finding);
    return false;
  }

 private:
  void keep(const Case& parsed, const properties::Finding& finding) {
    constexpr auto longest = std::chrono::seconds{60};
    id_ = finding.id;
    deadline_ = Clock::now() + longest;
    const std::string file = fmt::format("unshrunk-{}-{}.batch", name_, finding.id);
    std::ofstream{file} << batchtext::print(parsed);
    std::cerr << "before shrinking, kept in " << file << ":\n"
              << properties::report(finding, parsed, "attnfuzz check " + file) << std::endl;
  }

  std::string name_;
  std::string_view families_;
  std::optional<std::string> id_;
  Clock::time_point deadline_;
};

void tag_shape(const Case& parsed) {
  const batchtext::Arrays arrays{parsed.steps.back()};
  attn::MetadataBuilder builder{max_entries};
  const auto built = builder.build(arrays.batch());
  if (!built) {
    RC_TAG(std::string{attn::name(built.error().kind)});
    return;
  }
  const attn::Split& split = built->split;
  const std::string shape = arrays.batch().num_reqs == 0                   ? "empty"
                            : split.num_decodes == arrays.batch().num_reqs ? "decode-only"
                            : split.num_extends == 0                       ? "no extend"
                            : built->context.num_chunks == 0               ? "zero chunks"
                            : built->context.num_chunks == 1               ? "one chunk"
                                                                           : "several chunks";
  RC_TAG(shape);
}

void check_family(const std::string& name, std::string_view families, int max_steps) {
  Judge judge{name, families};
  const bool held = rc::check(name, [&] {
    const Case parsed = *cases(max_steps);
    tag_shape(parsed);
    RC_ASSERT(judge.holds(parsed));
  });
  EXPECT_TRUE(held);
}

TEST(Property, splits_hold) { check_family("splits hold", "S", 1); }
TEST(Property, chunked_context_holds) { check_family("chunked context holds", "C", 1); }
TEST(Property, builds_stay_within_their_memory) { check_family("builds stay within their memory", "B", 1); }
TEST(Property, windows_hold) { check_family("windows hold", "W", 1); }
TEST(Property, changed_batches_agree) { check_family("changed batches agree", "M", 1); }
TEST(Property, the_naive_implementation_agrees) { check_family("the naive implementation agrees", "O", 1); }
TEST(Property, other_rooms_hold) { check_family("other rooms hold", "LRE", 1); }
TEST(Property, sequences_on_one_builder_hold) { check_family("sequences on one builder hold", "C", 4); }

// ---- malformed input ------------------------------------------------------------------------------------------------

class Malformed : public testing::TestWithParam<int> {};

TEST_P(Malformed, is_refused_with_its_own_error_and_nothing_else_happens) {
  const auto kind = static_cast<attn::Error::Kind>(GetParam());
  int reached = 0;
  constexpr int draws = 300;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    properties::Random random{seed};
    Case parsed = properties::draw_case(random, 2);
    parsed.steps.push_back(properties::draw_malformed(random, kind, max_entries));
    const batchtext::Arrays arrays{parsed.steps.back()};
    ASSERT_TRUE(properties::broken_rules(arrays.batch(), max_entries)[kind]) << batchtext::print(parsed);
    // E1 to E3: the rule, its numbers, and the metadata of the steps before left standing.
    const auto finding = properties::check_case(parsed, {.families = "", .max_entries = max_entries});
    ASSERT_FALSE(finding) << properties::report(*finding, parsed, "attnfuzz check");
    attn::MetadataBuilder builder{max_entries};
    const auto built = builder.build(arrays.batch());
    ASSERT_FALSE(built) << batchtext::print(parsed);
    reached += built.error().kind == kind;
  }
  EXPECT_EQ(reached, draws) << attn::name(kind);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Malformed, testing::Range(0, static_cast<int>(attn::Error::out_of_memory)),
                         [](const auto& info) {
                           return std::string{attn::name(static_cast<attn::Error::Kind>(info.param))};
                         });

// ---- what is drawn --------------------------------------------------------------------------------------------------

/// Classes of batches that faults came from, with the share of drawn batches that is the least worth having.
struct Share {
  const char* name;
  double least_percent;
  int count = 0;
};

class Shares {
 public:
  void add(const attn::Batch& batch, const tl::expected<attn::Metadata, attn::Error>& built) {
    ++total_;
    count("refused for its size", !built);
    if (!built) return;
    const attn::Split& split = built->split;
    const std::int32_t extends = split.num_extends;
    const auto contexts = built->context.context_lens;
    const auto with_context =
        std::count_if(contexts.begin(), contexts.end(), [](std::int32_t context) { return context > 0; });
    const std::int64_t share = extends > 0 ? std::max(batch.config.workspace_tokens / extends, 1) : 1;
    count("empty", batch.num_reqs == 0);
    count("decode-only", batch.num_reqs > 0 && split.num_decodes == batch.num_reqs);
    count("extend-only", extends > 0 && extends == batch.num_reqs);
    count("prefill-only", split.num_prefills > 0 && split.num_prefills == batch.num_reqs);
    count("all three regions", split.num_decodes > 0 && extends > 0 && split.num_prefills > 0);
    count("padded, with extends or prefills", split.num_padding > 0);
    count("extends, but no chunk", extends > 0 && built->context.num_chunks == 0);
    count("one chunk", built->context.num_chunks == 1);
    count("several chunks", built->context.num_chunks > 1);
    count("all but one context empty", extends > 1 && with_context == 1);
    count("a context that is a multiple of the share",
          std::any_of(contexts.begin(), contexts.end(),
                      [&](std::int32_t context) { return context > 0 && context % share == 0; }));
    count("several chunks, packed",
          built->context.num_chunks > 1 && batch.config.chunk_policy == attn::ChunkPolicy::packed);
    count("threshold above 1", batch.config.decode_threshold > 1);
    count("a window that cuts",
          built->window && std::any_of(built->window->seq_starts.begin(), built->window->seq_starts.end(),
                                       [](std::int32_t start) { return start > 0; }));
    count("bounds and exact lengths", !batch.seq_lens.empty() && !batch.seq_lens_upper_bound.empty());
    count("bounds alone", batch.seq_lens.empty() && !batch.seq_lens_upper_bound.empty());
    count("no lengths", batch.num_reqs > 0 && batch.best_seq_lens().empty());
    count("max_query_len above every row",
          batch.max_query_len >
              std::max({built->decode.max_query_len, built->extend.max_query_len, built->prefill.max_query_len}));
    count("a sequence below its query", below_query(batch));
    count("a sequence near 2^31", built->decode.max_seq_len > 1000000000);
    count("a workspace of a few tokens", batch.config.workspace_tokens < 5);
  }

  void expect_least() {
    for (const Share& share : shares_) {
      const double percent = 100.0 * share.count / total_;
      fmt::print("{:>6.1f} %  (at least {:>4.1f} %)  {}\n", percent, share.least_percent, share.name);
      EXPECT_GE(percent, share.least_percent) << share.name;
    }
  }
  void expect_most(const std::string& name, double most_percent) {
    EXPECT_LE(100.0 * of(name).count / total_, most_percent) << name;
  }

 private:
  static bool below_query(const attn::Batch& batch) {
    for (std::int32_t i = 0; i < batch.num_reqs && !batch.best_seq_lens().empty(); ++i)
      if (batch.best_seq_lens()[static_cast<std::size_t>(i)] < batch.query_len(i)) return true;
    return false;
  }
  Share& of(const std::string& name) {
    return *std::find_if(shares_.begin(), shares_.end(), [&](const Share& share) { return share.name == name; });
  }
  void count(const std::string& name, bool does) { of(name).count += does; }

  int total_ = 0;
  std::array<Share, 22> shares_{{{"refused for its size", 1},
                                 {"empty", 1},
                                 {"decode-only", 5},
                                 {"extend-only", 3},
                                 {"prefill-only", 3},
                                 {"all three regions", 20},
                                 {"padded, with extends or prefills", 10},
                                 {"extends, but no chunk", 5},
                                 {"one chunk", 10},
                                 {"several chunks", 15},
                                 {"all but one context empty", 2},
                                 {"a context that is a multiple of the share", 10},
                                 {"several chunks, packed", 10},
                                 {"threshold above 1", 30},
                                 {"a window that cuts", 8},
                                 {"bounds and exact lengths", 15},
                                 {"bounds alone", 5},
                                 {"no lengths", 1},
                                 {"max_query_len above every row", 5},
                                 {"a sequence below its query", 3},
                                 {"a sequence near 2^31", 1},
                                 {"a workspace of a few tokens", 10}}};
};

TEST(Drawn, batches_have_their_share_of_every_class) {
  Shares shares;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    properties::Random random{seed};
    const Step step = properties::draw_step(random);
    ASSERT_TRUE(properties::is_legal(step)) << batchtext::print({{step}});
    const batchtext::Arrays arrays{step};
    attn::MetadataBuilder builder{max_entries};
    shares.add(arrays.batch(), builder.build(arrays.batch()));
  }
  shares.expect_least();
  // Refused batches say little: a generator that throws away more than this wastes its time.
  shares.expect_most("refused for its size", 25);
}

TEST(Drawn, steps_behind_the_first_are_often_smaller) {
  int pairs = 0;
  int smaller = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    properties::Random random{seed};
    const Case parsed = properties::draw_case(random, 4);
    for (std::size_t i = 1; i < parsed.steps.size(); ++i, ++pairs)
      smaller += parsed.steps[i].requests.size() < parsed.steps[i - 1].requests.size();
  }
  EXPECT_GT(smaller * 100, pairs * 50) << smaller << " of " << pairs;
}

TEST(Drawn, shrinking_keeps_cases_legal_and_ends) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    properties::Random random{seed};
    Case parsed = properties::draw_case(random, 3);
    int rounds = 0;
    // Always the first candidate: the way RapidCheck goes when everything fails.
    for (auto smaller = properties::smaller_cases(parsed); !smaller.empty();
         smaller = properties::smaller_cases(parsed)) {
      for (const Case& candidate : smaller)
        for (const Step& step : candidate.steps) ASSERT_TRUE(properties::is_legal(step)) << batchtext::print(candidate);
      parsed = smaller.front();
      ASSERT_LT(++rounds, 500);
    }
    EXPECT_EQ(parsed, Case{{Step{}}});
  }
}

}  // namespace
