// The device path, on whatever HIP runtime is built in: the device properties on the corpus and on drawn batches, and
// what a builder promises besides its results.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "attn/device/device_metadata.hpp"
#include "attn/device/job.hpp"
#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"
#include "properties/compare.hpp"
#include "properties/device/check.hpp"
#include "properties/device/expect.hpp"
#include "properties/device/run.hpp"
#include "properties/device/steer.hpp"
#include "properties/edit.hpp"
#include "properties/random_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WATCHES_RACES 1
#endif
#endif

namespace {

namespace fs = std::filesystem;
namespace device = properties::device;
using attn::Error;
using attn::device::Capacity;
using attn::device::DeviceMetadataBuilder;
using batchtext::Case;
using batchtext::Step;

/// Entries a batch may produce; a case then costs milliseconds.
constexpr std::int64_t max_entries = std::int64_t{1} << 12;

#ifdef WATCHES_RACES
/// ThreadSanitizer makes every GPU thread one of its own: a hundred times slower. A share of the cases, unless
/// ATTNFUZZ_RACE_SHARE says otherwise (1: all of them, as at night).
constexpr int default_share = 4;
const int configured = setenv("RC_PARAMS", "seed=20261130 max_success=30", 0);
#else
constexpr int default_share = 1;
/// The seed is fixed so that two runs see the same; a night draws its own through RC_PARAMS.
const int configured = setenv("RC_PARAMS", "seed=20261130 max_success=1000", 0);
#endif

std::size_t share() {
  const char* const text = std::getenv("ATTNFUZZ_RACE_SHARE");
  const int given = text == nullptr ? default_share : std::atoi(text);
  return static_cast<std::size_t>(std::max(given, 1));
}

Step step_of(std::string_view text) {
  const auto parsed = batchtext::parse("attnfuzz 1\n" + std::string{text});
  EXPECT_TRUE(parsed) << text;
  return parsed->steps.front();
}

/// For what `attnfuzz reduce --device` prints.
#define EXPECT_HOLDS_ON_DEVICE(text)                                                               \
  do {                                                                                             \
    const auto parsed = batchtext::parse(text);                                                    \
    ASSERT_TRUE(parsed) << batchtext::message(parsed.error(), "the case");                         \
    const auto finding = device::check_case(*parsed);                                              \
    EXPECT_FALSE(finding) << finding->id << ": " << finding->where << ": " << finding->difference; \
  } while (false)

/// Skipped, with the reason, where no device answers.
class Device : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = device::no_device()) GTEST_SKIP() << *reason;
    device::follow({});
  }
};

// ---- the properties -------------------------------------------------------------------------------------------------

/// On drawn batches: what a night runs with other seeds.
class DeviceProperty : public Device {};
class DeviceCorpus : public Device, public testing::WithParamInterface<const char*> {};

TEST_P(DeviceCorpus, every_file_holds_on_the_device) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path{ATTNFUZZ_SOURCE_DIR} / "corpus" / GetParam()))
    if (entry.path().extension() == ".batch") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  std::size_t checked = 0;
  std::int64_t left_out = 0;
  for (std::size_t i = 0; i < files.size(); i += share(), ++checked) {
    std::ifstream in{files[i], std::ios::binary};
    auto parsed = batchtext::parse(std::string{std::istreambuf_iterator<char>{in}, {}});
    ASSERT_TRUE(parsed) << files[i];
    // Most files were written for the CPU path and say nothing of schedules: each gets one of its own.
    for (Step& step : parsed->steps)
      if (step.schedule_seed == 0) step.schedule_seed = static_cast<std::int32_t>(i);
    // Large batches cost most and say least about schedules and faults.
    constexpr std::int64_t largest = std::int64_t{1} << 20;
    left_out += device::num_left_out(*parsed, largest);
    if (const auto finding = device::check_case(*parsed, {.max_entries = largest}))
      ADD_FAILURE() << properties::report(*finding, *parsed, "attnfuzz check --device " + files[i].string());
  }
  fmt::print("corpus/{}: {} of {} files on the device path, {} steps left out as too large\n", GetParam(), checked,
             files.size(), left_out);
}

INSTANTIATE_TEST_SUITE_P(Folders, DeviceCorpus, testing::Values("seeds", "regressions"),
                         [](const auto& info) { return std::string{info.param}; });

rc::Gen<Case> cases(int max_steps) {
  auto seeds = rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>()));
  auto drawn = rc::gen::map(std::move(seeds), [max_steps](std::uint64_t seed) {
    properties::Random random{seed};
    Case parsed = properties::draw_case(random, max_steps);
    for (Step& step : parsed.steps) step.schedule_seed = static_cast<std::int32_t>(random.below(1 << 16));
    const auto kind = static_cast<Error::Kind>(random.below(Error::num_kinds));
    if (random.chance(10) && properties::is_builder_kind(kind))
      parsed.steps.push_back(properties::draw_malformed(random, kind, max_entries));
    return parsed;
  });
  return rc::gen::shrink(std::move(drawn),
                         [](const Case& parsed) { return rc::seq::fromContainer(properties::smaller_cases(parsed)); });
}

void tag_shape(const Case& parsed) {
  const batchtext::Arrays arrays{parsed.steps.front()};
  attn::MetadataBuilder builder{max_entries};
  const auto built = builder.build(arrays.batch());
  RC_TAG(!built                           ? std::string{attn::name(built.error().kind)}
         : built->split.num_extends == 0  ? std::string{"no extend"}
         : built->context.num_chunks == 0 ? std::string{"zero chunks"}
         : built->context.num_chunks == 1 ? std::string{"one chunk"}
                                          : std::string{"several chunks"});
}

void check_drawn(const std::string& name, int max_steps, const device::Scope& scope) {
  std::optional<std::string> id;
  const bool held = rc::check(name, [&] {
    const Case parsed = *cases(max_steps);
    tag_shape(parsed);
    const auto finding = device::check_case(parsed, scope);
    // The same invariant on the way to a smaller case.
    if (!finding || (id && *id != finding->id)) return;
    if (!id) {
      const std::string file = fmt::format("unshrunk-{}.batch", finding->id);
      std::ofstream{file} << batchtext::print(parsed);
      fmt::print(stderr, "before shrinking, kept in {}:\n{}\n", file,
                 properties::report(*finding, parsed, "attnfuzz check --device " + file));
    }
    id = finding->id;
    RC_FAIL(properties::report(*finding, parsed, "attnfuzz check --device FILE"));
  });
  EXPECT_TRUE(held);
}

TEST_F(DeviceProperty, builds_hold) {
  check_drawn("builds hold", 1, {.sequence = false, .faults = false, .max_entries = max_entries});
}
TEST_F(DeviceProperty, sequences_and_replays_hold) {
  check_drawn("sequences and replays hold", 4, {.builds = false, .faults = false, .max_entries = max_entries});
}
TEST_F(DeviceProperty, failing_calls_are_survived) {
  if (!device::can_steer()) GTEST_SKIP() << "calls of this runtime cannot be made to fail";
#ifdef WATCHES_RACES
  GTEST_SKIP() << "a failing call is no race; the build without ThreadSanitizer holds this";
#endif
  check_drawn("failing calls are survived", 1, {.builds = false, .sequence = false, .max_entries = max_entries});
}

// ---- sizes beyond one block -----------------------------------------------------------------------------------------

/// More extends, passes and tokens than one block of any kernel takes.
class LargeBatch : public Device, public testing::WithParamInterface<const char*> {};

TEST_P(LargeBatch, is_scanned_by_several_blocks) {
#ifdef WATCHES_RACES
  if (std::string_view{GetParam()}.find("few_tokens") == std::string_view::npos)
    GTEST_SKIP() << "as many threads as tokens are more than ThreadSanitizer takes in a test's time";
#endif
  const Case parsed{{step_of(GetParam())}};
  const auto finding = device::check_case(parsed, {.faults = false});
  if (finding) FAIL() << properties::report(*finding, parsed, "attnfuzz check --device");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LargeBatch,
    testing::Values("# few_tokens\nworkspace_tokens 4000\nbatch 1100q2s4\nwindow_left 1",
                    "# few_tokens\nworkspace_tokens 900\nchunk_policy packed\nbatch 1100q2s4\nschedule_seed 2",
                    "workspace_tokens 20000\nbatch 3000q2s40_5q7\nseq_lens_upper_bound batch",
                    "workspace_tokens 20000\nchunk_policy packed\nbatch 3000q2s40\nwindow_left 9",
                    "workspace_tokens 7\nbatch 4q2s3000\nschedule_seed 3",
                    "workspace_tokens 3\nchunk_policy packed\nbatch 2q5s2k_2q1k\nschedule_seed 1",
                    "batch 5000q1s9_1500q3s5", "workspace_tokens 9000\nwindow_left 30\nbatch 700q2s4_q2s90_399q2s4",
                    "workspace_tokens 9000\nchunk_policy packed\nbatch 1015q2s4_q2s90_9q2s4\nschedule_seed 1",
                    "workspace_tokens 4000\nbatch 255q2s40\nschedule_seed 1", "workspace_tokens 4000\nbatch 257q2s40",
                    "decode_threshold 4\nbatch 2500q4s100_500q0s0"),
    [](const auto& info) { return std::to_string(info.index); });

// ---- the contract ---------------------------------------------------------------------------------------------------

constexpr const char* mixed =
    "window_left 5\nworkspace_tokens 16\nbatch 3q1s20_2q4s30_q6s40_2q5_q0s7\nseq_lens_upper_bound batch";

// vLLM's ROCm builder copied lengths back in every mixed batch, because some rows' contexts were known on the device
// only: here a bound makes an extend of each, and one turns out to have no context at all.
TEST_F(Device, a_bound_above_the_exact_length_leaves_an_empty_context) {
  EXPECT_HOLDS_ON_DEVICE("attnfuzz 1\nworkspace_tokens 4\nbatch q4s4_q4s9_2q4\nseq_lens_upper_bound 9 20 4 4\n");
}

TEST_F(Device, a_capacity_below_zero_is_refused_by_name) {
  struct Wrong {
    Capacity capacity;
    const char* subject;
    std::int64_t value;
    std::int64_t least;
  };
  const Wrong all[] = {
      {{.max_reqs = -1}, "max_reqs", -1, 0},
      {{.max_query_tokens = -2}, "max_query_tokens", -2, 0},
      {{.max_chunks = -7}, "max_chunks", -7, 0},
      {{.max_slices = -3}, "max_slices", -3, 0},
      {{.max_context_tokens = -4}, "max_context_tokens", -4, 0},
      {{.max_window_tokens = -5}, "max_window_tokens", -5, 0},
      {{.builds_in_flight = 0}, "builds_in_flight", 0, 1},
  };
  for (const Wrong& wrong : all) {
    const auto builder = DeviceMetadataBuilder::create(wrong.capacity);
    ASSERT_FALSE(builder) << wrong.subject;
    EXPECT_EQ(builder.error(), (Error{Error::invalid_capacity, -1, wrong.value, wrong.least, wrong.subject}))
        << attn::message(builder.error());
  }
}

TEST_F(Device, more_builds_in_flight_than_any_server_has_are_refused) {
  const auto builder = DeviceMetadataBuilder::create({.builds_in_flight = 2147483647});
  ASSERT_FALSE(builder);
  EXPECT_EQ(builder.error(), (Error{Error::capacity_exceeded, -1, 2147483647, 1024, "builds in flight"}));
}

TEST_F(Device, a_tiling_outside_its_range_is_refused_by_name) {
  using attn::device::Tiling;
  const std::pair<Tiling, Error> all[] = {
      {{.tile_items = 0}, {Error::invalid_capacity, -1, 0, 1, "tile_items"}},
      {{.tile_items = 1025}, {Error::capacity_exceeded, -1, 1025, 1024, "tile_items"}},
      {{.max_segments = -1}, {Error::invalid_capacity, -1, -1, 1, "max_segments"}},
      {{.max_segments = 257}, {Error::capacity_exceeded, -1, 257, 256, "max_segments"}},
  };
  for (const auto& [tiling, error] : all) {
    const auto builder = DeviceMetadataBuilder::create({.max_reqs = 1}, tiling);
    ASSERT_FALSE(builder) << error.subject;
    EXPECT_EQ(builder.error(), error) << attn::message(builder.error());
  }
}

/// What lets a fuzzer at the sums of segments: without this the properties could hold because nothing is cut.
TEST_F(Device, a_small_tiling_cuts_a_row_of_three_extends) {
  struct Expected {
    const char* text;
    std::uint32_t kernels;
  };
  const Expected all[] = {
      {"workspace_tokens 6\nbatch 3q2s9", attn::device::sum_slice_segments | attn::device::sum_chunk_segments},
      {"workspace_tokens 6\nchunk_policy packed\nbatch 3q2s9", attn::device::sum_context_segments},
      {"window_left 3\nbatch 3q2s9", attn::device::sum_window_segments},
  };
  for (const auto& [text, kernels] : all) {
    const batchtext::Arrays arrays{step_of(text)};
    const auto capacity = attn::device::required_capacity(arrays.batch());
    ASSERT_TRUE(capacity);
    const device::Stream stream;
    auto whole = DeviceMetadataBuilder::create(*capacity);
    auto cut = DeviceMetadataBuilder::create(*capacity, {.tile_items = 1, .max_segments = 2});
    ASSERT_TRUE(whole && cut);
    const auto in_one = whole->build(arrays.batch(), {}, stream.get());
    const auto in_pieces = cut->build(arrays.batch(), {}, stream.get());
    ASSERT_TRUE(in_one && in_pieces);
    EXPECT_EQ(in_one->kernels & kernels, 0u) << text;
    EXPECT_EQ(in_pieces->kernels & kernels, kernels) << text;
    const auto differs = device::compare(device::download(*in_pieces, stream), device::download(*in_one, stream));
    EXPECT_FALSE(differs) << text << ": " << differs->where << ": " << differs->what;
  }
}

TEST_F(Device, above_its_capacity_a_builder_refuses_with_both_numbers_and_queues_nothing) {
  const batchtext::Arrays arrays{step_of(mixed)};
  const auto needed = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(needed) << attn::message(needed.error());
  struct Less {
    const char* subject;
    std::int64_t need;
    Capacity capacity;
  };
  const auto with = [&](auto change) {
    Capacity capacity = *needed;
    change(capacity);
    return capacity;
  };
  const Less all[] = {
      {"requests", needed->max_reqs, with([](Capacity& c) { --c.max_reqs; })},
      {"query tokens", needed->max_query_tokens, with([](Capacity& c) { --c.max_query_tokens; })},
      {"chunks", needed->max_chunks, with([](Capacity& c) { --c.max_chunks; })},
      {"slices", needed->max_slices, with([](Capacity& c) { --c.max_slices; })},
      {"context tokens", needed->max_context_tokens, with([](Capacity& c) { --c.max_context_tokens; })},
      {"window tokens", needed->max_window_tokens, with([](Capacity& c) { --c.max_window_tokens; })},
  };
  for (const Less& less : all) {
    auto builder = DeviceMetadataBuilder::create(less.capacity);
    ASSERT_TRUE(builder) << less.subject;
    const device::Stream stream;
    const device::Counts before = device::counts();
    const auto built = builder->build(arrays.batch(), {}, stream.get());
    ASSERT_FALSE(built) << less.subject;
    EXPECT_EQ(built.error(), (Error{Error::capacity_exceeded, -1, less.need, less.need - 1, less.subject}))
        << attn::message(built.error());
    EXPECT_EQ(device::counts().launches, before.launches);
    EXPECT_EQ(device::counts().host_to_device_bytes, before.host_to_device_bytes);
  }
}

TEST_F(Device, the_larger_of_two_capacities_has_room_for_both) {
  using Numbers = std::array<std::int32_t, 8>;
  const auto capacity_of = [](const Numbers& n) {
    return Capacity{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7] != 0};
  };
  // Names every field: one more, and this does not compile until it is held as well.
  [[maybe_unused]] const auto& [reqs, tokens, chunks, slices, context, window, in_flight, captures] = Capacity{};
  for (std::size_t field = 0; field < Numbers{}.size(); ++field) {
    Numbers numbers{3, 3, 3, 3, 3, 3, 3, 0};
    const Capacity small = capacity_of(numbers);
    numbers[field] = 4;
    const Capacity large = capacity_of(numbers);
    ASSERT_NE(small, large) << "field " << field;
    EXPECT_EQ(max(small, large), large) << "field " << field;
    EXPECT_EQ(max(large, small), large) << "field " << field;
  }
  EXPECT_EQ(max(capacity_of({1, 9, 1, 9, 1, 9, 1, 1}), capacity_of({9, 1, 9, 1, 9, 1, 9, 0})),
            capacity_of({9, 9, 9, 9, 9, 9, 9, 1}));
}

/// False where the runtime has no graphs.
bool begin_capture(const device::Stream& stream) {
  const hipError_t begun = hipStreamBeginCapture(stream.get(), hipStreamCaptureModeGlobal);
  EXPECT_TRUE(begun == hipSuccess || begun == hipErrorNotSupported) << hipGetErrorName(begun);
  return begun == hipSuccess;
}

TEST_F(Device, a_capture_without_room_for_one_is_refused) {
  const batchtext::Arrays arrays{step_of(mixed)};
  auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  capacity->captures = false;
  const device::Stream stream;
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder);
  if (!begin_capture(stream)) GTEST_SKIP() << "this runtime has no graphs";
  const auto built = builder->build(arrays.batch(), {}, stream.get());
  hipGraph_t graph = nullptr;
  EXPECT_EQ(hipStreamEndCapture(stream.get(), &graph), hipSuccess);
  if (graph != nullptr) {
    EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
  }
  ASSERT_FALSE(built);
  const Error no_room{Error::invalid_capacity, -1, 0, 1, "captures"};
  EXPECT_EQ(built.error(), no_room) << attn::message(built.error());
  const auto replayed = builder->restage({}, arrays.batch(), {}, stream.get());
  ASSERT_FALSE(replayed);
  EXPECT_EQ(replayed.error(), no_room) << attn::message(replayed.error());
}

/// What a graph has otherwise: it is of another builder, or its build was of fewer regions and has not all kernels.
TEST_F(Device, a_graph_that_cannot_take_a_batch_says_why) {
  const auto decodes = device::DeviceBatch::make(step_of("batch 4q1s9"), device::LengthKind::host);
  const auto windows = device::DeviceBatch::make(step_of("window_left 3\nbatch 4q5s9"), device::LengthKind::host);
  const auto capacity =
      max(*attn::device::required_capacity(decodes->host()), *attn::device::required_capacity(windows->host()));
  const device::Stream stream;
  auto builder = DeviceMetadataBuilder::create(capacity);
  auto another = DeviceMetadataBuilder::create(capacity);
  ASSERT_TRUE(builder && another);
  if (!begin_capture(stream)) GTEST_SKIP() << "this runtime has no graphs";
  const auto recorded = builder->build(decodes->host(), {}, stream.get());
  hipGraph_t graph = nullptr;
  ASSERT_EQ(hipStreamEndCapture(stream.get(), &graph), hipSuccess);
  ASSERT_EQ(hipGraphDestroy(graph), hipSuccess);
  ASSERT_TRUE(recorded) << attn::message(recorded.error());
  const auto of_another = another->restage(*recorded, decodes->host(), {}, stream.get());
  ASSERT_FALSE(of_another);
  EXPECT_EQ(of_another.error(), (Error{Error::graph_mismatch, -1, 1, 0, "build captured with this builder"}));
  const auto more = builder->restage(*recorded, windows->host(), {}, stream.get());
  ASSERT_FALSE(more);
  // scan_shares, scan_chunks, map_contexts, scan_windows, map_windows.
  EXPECT_EQ(more.error(), (Error{Error::graph_mismatch, -1, 5, 0, "kernels that were not captured"}))
      << attn::message(more.error());
}

/// A decode batch in a graph, at its captured size, as servers replay it: fewer real requests, padding behind them.
TEST_F(Device, a_captured_decode_batch_replays_with_padding) {
  auto captured = device::DeviceBatch::make(step_of("decode_threshold 2\nbatch 8q2s100"), device::LengthKind::exact);
  ASSERT_TRUE(captured);
  auto capacity = attn::device::required_capacity(captured->host());
  ASSERT_TRUE(capacity);
  const device::Stream stream;
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder);
  captured->upload();
  if (!begin_capture(stream)) GTEST_SKIP() << "this runtime has no graphs";
  const auto recorded = builder->build(captured->host(), captured->lengths(), stream.get());
  hipGraph_t graph = nullptr;
  ASSERT_EQ(hipStreamEndCapture(stream.get(), &graph), hipSuccess);
  ASSERT_TRUE(recorded) << attn::message(recorded.error());
  hipGraphExec_t exec = nullptr;
  ASSERT_EQ(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), hipSuccess);
  for (const char* text : {"decode_threshold 2\nbatch 5q2s100_3q0s9", "decode_threshold 2\nbatch 8q2s7",
                           "decode_threshold 2\nbatch q1s3_7q0s77"}) {
    auto next = device::DeviceBatch::make(step_of(text), device::LengthKind::exact);
    next->upload();
    const auto replayed = builder->restage(*recorded, next->host(), next->lengths(), stream.get());
    ASSERT_TRUE(replayed) << text << attn::message(replayed.error());
    ASSERT_EQ(hipGraphLaunch(exec, stream.get()), hipSuccess);
    const auto found = device::download(*replayed, stream);
    attn::MetadataBuilder host_builder;
    attn::MetadataBuilder reference_builder;
    const auto host = host_builder.build(next->host());
    const auto reference = reference_builder.build(next->reference());
    ASSERT_TRUE(host && reference);
    const auto differs = device::compare(found, {next->reference(), *host, *reference});
    EXPECT_FALSE(differs) << text << ": " << differs->where << ": " << differs->what;
  }
  const auto other = device::DeviceBatch::make(step_of("decode_threshold 2\nbatch 9q2s7"), device::LengthKind::host);
  const auto refused = builder->restage(*recorded, other->host(), {}, stream.get());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, Error::capacity_exceeded) << attn::message(refused.error());
  const auto fewer = device::DeviceBatch::make(step_of("decode_threshold 2\nbatch 7q2s7"), device::LengthKind::host);
  const auto mismatch = builder->restage(*recorded, fewer->host(), {}, stream.get());
  ASSERT_FALSE(mismatch);
  EXPECT_EQ(mismatch.error(), (Error{Error::graph_mismatch, -1, 7, 8, "requests"})) << attn::message(mismatch.error());
  EXPECT_EQ(hipGraphExecDestroy(exec), hipSuccess);
  EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
}

TEST_F(Device, a_moved_builder_takes_its_memory_along) {
  const batchtext::Arrays arrays{step_of(mixed)};
  const auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  auto first = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(first);
  const device::Stream stream;
  const auto built = first->build(arrays.batch(), {}, stream.get());
  ASSERT_TRUE(built);
  DeviceMetadataBuilder second = std::move(*first);
  EXPECT_EQ(second.capacity(), *capacity);
  const auto found = device::download(*built, stream);
  EXPECT_EQ(found.metadata.split.num_extends, 3);
  EXPECT_TRUE(second.build(arrays.batch(), {}, stream.get()));
}

TEST_F(Device, a_builder_that_ends_waits_for_what_is_queued) {
  const batchtext::Arrays arrays{step_of(mixed)};
  const auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  const device::Stream stream;
  {
    auto builder = DeviceMetadataBuilder::create(*capacity);
    ASSERT_TRUE(builder);
    ASSERT_TRUE(builder->build(arrays.batch(), {}, stream.get()));
  }
  // Memory that was freed under a kernel shows here: by AddressSanitizer, or as a failed kernel.
  EXPECT_EQ(hipStreamSynchronize(stream.get()), hipSuccess);
}

/// The host's bounds were not advanced by the two tokens just accepted.
TEST_F(Device, lengths_above_their_bounds_are_counted) {
  for (const auto& [lens, clamped] : {std::pair{"32 42", 2}, {"30 42", 1}, {"30 40", 0}, {"-1 40", 1}}) {
    const auto step = step_of(std::string{"batch q1s30_q8s40\nseq_lens_upper_bound 30 40\nseq_lens "} + lens);
    const auto batch = device::DeviceBatch::make(step, device::LengthKind::exact);
    ASSERT_TRUE(batch);
    const auto capacity = attn::device::required_capacity(batch->host());
    ASSERT_TRUE(capacity) << attn::message(capacity.error());
    auto builder = DeviceMetadataBuilder::create(*capacity);
    ASSERT_TRUE(builder);
    batch->upload();
    const device::Stream stream;
    const auto built = builder->build(batch->host(), batch->lengths(), stream.get());
    ASSERT_TRUE(built) << attn::message(built.error());
    EXPECT_EQ(device::download(*built, stream).scalars.num_clamped, clamped) << lens;
  }
}

/// A decode step padded to a captured size of 8 tokens.
TEST_F(Device, tokens_that_no_request_owns_have_position_0) {
  const batchtext::Arrays arrays{step_of("batch 2q1s9_q1s4_q0\nnum_actual_tokens 8")};
  const auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  EXPECT_EQ(capacity->max_query_tokens, 8);
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder);
  const device::Stream stream;
  const auto built = builder->build(arrays.batch(), {}, stream.get());
  ASSERT_TRUE(built) << attn::message(built.error());
  const auto found = device::download(*built, stream);
  EXPECT_EQ(std::vector<std::int32_t>(found.positions.begin(), found.positions.end()),
            (std::vector<std::int32_t>{8, 8, 3, 0, 0, 0, 0, 0}));
}

/// What the device may find in lengths that nobody checked: every value stays inside the arrays.
TEST_F(Device, lengths_out_of_range_count_as_the_nearest_that_is_not) {
  for (const char* lens : {"-1 -5 2147483647 -2147483648 9 0", "2147483647 2147483647 2147483647 2147483647 0 1"}) {
    const std::string text = std::string{"workspace_tokens 8\nwindow_left 3\nbatch 2q1s9_2q4s30_2q5\n"} +
                             "seq_lens_upper_bound batch\nseq_lens " + lens;
    for (const auto kind : {device::LengthKind::exact, device::LengthKind::computed}) {
      const auto batch = device::DeviceBatch::make(step_of(text), kind);
      if (!batch) continue;  // a count of computed tokens that is no int32
      const auto capacity = attn::device::required_capacity(batch->host());
      ASSERT_TRUE(capacity) << attn::message(capacity.error());
      auto builder = DeviceMetadataBuilder::create(*capacity);
      ASSERT_TRUE(builder);
      batch->upload();
      const device::Stream stream;
      const auto built = builder->build(batch->host(), batch->lengths(), stream.get());
      ASSERT_TRUE(built) << attn::message(built.error());
      attn::MetadataBuilder host_builder;
      attn::MetadataBuilder reference_builder;
      const auto host = host_builder.build(batch->host());
      const auto reference = reference_builder.build(batch->reference());
      ASSERT_TRUE(host && reference);
      const auto found = device::download(*built, stream);
      const auto differs = device::compare(found, {batch->reference(), *host, *reference, batch->num_clamped()});
      EXPECT_FALSE(differs) << text << ": " << differs->where << ": " << differs->what;
    }
  }
}

/// A sum beyond int32 is no negative length.
TEST_F(Device, computed_tokens_count_in_64_bits) {
  const batchtext::Arrays arrays{step_of("batch 2q8s90\nseq_lens none\nseq_lens_upper_bound batch")};
  const auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder);
  const std::vector<std::int32_t> computed{2147483647, 5};
  std::int32_t* on_device = nullptr;
  ASSERT_EQ(hipMalloc(&on_device, 8), hipSuccess);
  ASSERT_EQ(hipMemcpy(on_device, computed.data(), 8, hipMemcpyHostToDevice), hipSuccess);
  {
    const device::Stream stream;
    const auto built =
        builder->build(arrays.batch(), {on_device, attn::device::DeviceLengths::num_computed_tokens}, stream.get());
    ASSERT_TRUE(built) << attn::message(built.error());
    const auto found = device::download(*built, stream);
    EXPECT_EQ(std::vector<std::int32_t>(found.seq_lens.begin(), found.seq_lens.end()),
              (std::vector<std::int32_t>{90, 13}));
  }
  EXPECT_EQ(hipFree(on_device), hipSuccess);
}

/// More rows than the largest launch has threads, and than a scan has segments of one tile, for the loops that take the
/// rest: decodes, then extends with a token of context each.
class ManyRows : public Device, public testing::WithParamInterface<std::int32_t> {};

TEST_P(ManyRows, are_built_like_few) {
#ifdef WATCHES_RACES
  GTEST_SKIP() << "hundreds of thousands of threads are more than ThreadSanitizer takes in a test's time";
#endif
  constexpr std::int32_t num_reqs = 300'000;
  const std::int32_t query_len = GetParam();
  std::vector<std::int32_t> offsets;
  for (std::int32_t i = 0; i <= num_reqs; ++i) offsets.push_back(i * query_len);
  const std::vector<std::int32_t> lens(static_cast<std::size_t>(num_reqs), query_len + 1);
  attn::Batch batch;
  batch.num_reqs = num_reqs;
  batch.num_actual_tokens = offsets.back();
  batch.query_start_loc = offsets;
  batch.seq_lens = lens;
  batch.max_query_len = query_len;
  batch.max_seq_len = query_len + 1;
  batch.config.workspace_tokens = num_reqs;
  batch.config.window_left = 0;
  auto capacity = attn::device::required_capacity(batch);
  ASSERT_TRUE(capacity);
  capacity->captures = false;
  const device::Stream stream;
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder) << attn::message(builder.error());
  const auto built = builder->build(batch, {}, stream.get());
  ASSERT_TRUE(built) << attn::message(built.error());
  attn::MetadataBuilder reference_builder;
  const auto reference = reference_builder.build(batch);
  ASSERT_TRUE(reference);
  const auto differs = device::compare(device::download(*built, stream), {batch, *reference, *reference});
  EXPECT_FALSE(differs) << differs->where << ": " << differs->what;
}

INSTANTIATE_TEST_SUITE_P(QueryLens, ManyRows, testing::Values(1, 2));

/// An error that somebody else has left in the runtime is not this build's.
TEST_F(Device, an_error_from_before_is_not_the_builds) {
  const batchtext::Arrays arrays{step_of(mixed)};
  const auto capacity = attn::device::required_capacity(arrays.batch());
  ASSERT_TRUE(capacity);
  const device::Stream stream;
  auto builder = DeviceMetadataBuilder::create(*capacity);
  ASSERT_TRUE(builder);
  int here = 0;
  EXPECT_NE(hipFree(&here), hipSuccess);
  const auto built = builder->build(arrays.batch(), {}, stream.get());
  EXPECT_TRUE(built) << attn::message(built.error());
}

TEST_F(Device, an_error_of_hip_names_the_call_and_the_error) {
  if (!device::can_steer()) GTEST_SKIP() << "calls of this runtime cannot be made to fail";
  device::fail_call(3, hipErrorOutOfMemory);
  const auto builder = DeviceMetadataBuilder::create({.max_reqs = 4});
  EXPECT_TRUE(device::stop_failing());
  ASSERT_FALSE(builder);
  EXPECT_EQ(attn::message(builder.error()), "device: hipMalloc failed with hipErrorOutOfMemory (2)");
}

}  // namespace
