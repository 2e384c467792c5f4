// Everything a server may do with a device builder, in any order, while HIP calls fail at random: builds, captures and
// replays on several streams, moves, ends. What comes back as metadata is right, what does not is an error of HIP's,
// and nothing leaks.
#include "attn/device/device_metadata.hpp"
#include "properties/device/expect.hpp"
#include "properties/device/run.hpp"
#include "properties/device/steer.hpp"
#include "properties/edit.hpp"
#include "properties/random_batch.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WATCHES_RACES 1
#endif
#endif

namespace {

namespace device = properties::device;
using attn::Error;
using attn::device::Capacity;
using attn::device::DeviceMetadata;
using attn::device::DeviceMetadataBuilder;
using batchtext::Step;
using properties::Random;

#ifdef WATCHES_RACES
constexpr std::uint64_t num_runs = 8;
#else
constexpr std::uint64_t num_runs = 2500;
#endif
constexpr int operations = 40;
constexpr std::int64_t max_entries = std::int64_t{1} << 12;

/// A batch on the device, and what has to come of it.
struct Subject {
  std::unique_ptr<device::DeviceBatch> batch;
  attn::MetadataBuilder host_builder{max_entries};
  attn::MetadataBuilder reference_builder{max_entries};
  std::optional<attn::Metadata> host;
  std::optional<attn::Metadata> reference;
};

std::unique_ptr<Subject> make_subject(const Step& step, Random& random) {
  auto subject = std::make_unique<Subject>();
  subject->batch = device::DeviceBatch::make(step, device::length_kinds[random.below(3)]);
  if (!subject->batch) subject->batch = device::DeviceBatch::make(step, device::LengthKind::host);
  const auto host = subject->host_builder.build(subject->batch->host());
  const auto reference = subject->reference_builder.build(subject->batch->reference());
  const auto capacity = attn::device::required_capacity(subject->batch->host());
  if (!host || !reference || !capacity || capacity->max_query_tokens > max_entries) return nullptr;
  subject->host = *host;
  subject->reference = *reference;
  return subject;
}

/// `step` again, with other contexts in part of its requests.
Step with_other_contexts(Step step, Random& random) {
  for (batchtext::Request& request : step.requests)
    if (request.seq_len > request.query_len && random.chance(50))
      request.seq_len =
          request.query_len + static_cast<std::int32_t>(random.below(request.seq_len - request.query_len + 1));
  if (!properties::is_legal(step)) properties::put_in_order(step);
  return step;
}

class Use {
 public:
  explicit Use(std::uint64_t seed) : seed_(seed), random_(seed) {
    device::follow({.seed = seed, .is_eager = random_.chance(10), .warp_size = random_.chance(50) ? 32 : 64});
    const Step base = properties::draw_step(random_);
    for (int i = 0; i < 6; ++i) {
      const Step step = random_.chance(40) ? properties::draw_step(random_) : with_other_contexts(base, random_);
      if (auto subject = make_subject(step, random_)) {
        capacity_ = max(capacity_, *attn::device::required_capacity(subject->batch->host()));
        subjects_.push_back(std::move(subject));
      }
    }
  }

  void go() {
    if (subjects_.empty()) return;
    for (const auto& subject : subjects_) subject->batch->upload();
    capacity_.builds_in_flight = static_cast<std::int32_t>(random_.between(1, 3));
    const std::int64_t live_before = device::counts().live_allocations;
    auto made = DeviceMetadataBuilder::create(capacity_, draw_tiling());
    ASSERT_TRUE(made) << attn::message(made.error());
    builder_ = std::make_unique<DeviceMetadataBuilder>(std::move(*made));
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) operate();
    // With graphs that could still run, or without.
    if (random_.chance(50)) end_builder(live_before);
    for (const Graph& graph : graphs_) {
      EXPECT_EQ(hipGraphExecDestroy(graph.exec), hipSuccess);
      EXPECT_EQ(hipGraphDestroy(graph.graph), hipSuccess);
    }
    if (builder_) end_builder(live_before);
  }

  [[nodiscard]] std::int64_t num_seen() const { return num_seen_; }
  [[nodiscard]] std::int64_t num_failed() const { return num_failed_; }
  [[nodiscard]] std::int64_t num_replays() const { return num_replays_; }

 private:
  struct Graph {
    DeviceMetadata metadata;
    hipGraph_t graph = nullptr;
    hipGraphExec_t exec = nullptr;
  };
  struct Queued {
    DeviceMetadata metadata;
    const Subject* subject;
    const device::Stream* stream;
  };

  /// Small enough to cut rows of a few extends, in half of the runs.
  attn::device::Tiling draw_tiling() {
    if (random_.chance(50)) return {};
    return {static_cast<std::int32_t>(random_.between(1, 8)), static_cast<std::int32_t>(random_.between(1, 4))};
  }

  void operate() {
    const Subject& subject = *subjects_[static_cast<std::size_t>(random_.below(std::ssize(subjects_)))];
    const device::Stream& stream = streams_[random_.below(3)];
    const std::int64_t what = random_.below(20);
    if (what < 9)
      build(subject, stream);
    else if (what < 12)
      capture(subject, stream);
    else if (what < 19)
      replay(subject, stream);
    else
      builder_ = std::make_unique<DeviceMetadataBuilder>(std::move(*builder_));
  }

  /// Calls of the builder fail in some operations: one of them, or any with a chance.
  void start_failing() {
    const std::int64_t kind = random_.below(4);
    if (kind == 1) device::fail_call(random_.between(1, 14), hipErrorUnknown);
    if (kind == 2) device::fail_some(static_cast<int>(random_.pick({10, 30, 60})), random_.next(), hipErrorOutOfMemory);
  }

  void expect_hip_error(const Error& error) {
    ++num_failed_;
    EXPECT_EQ(error.kind, Error::device) << "seed " << seed_ << ": " << attn::message(error);
  }

  void build(const Subject& subject, const device::Stream& stream) {
    start_failing();
    const auto built = builder_->build(subject.batch->host(), subject.batch->lengths(), stream.get());
    const bool happened = device::stop_failing();
    if (!built) {
      EXPECT_TRUE(happened);
      return expect_hip_error(built.error());
    }
    last_ = Queued{*built, &subject, &stream};
    if (random_.chance(50)) look_at(*last_, "build");
  }

  void capture(const Subject& subject, const device::Stream& stream) {
    if (graphs_.size() == 4) return;
    device::require_hip(hipStreamBeginCapture(stream.get(), hipStreamCaptureModeGlobal), "hipStreamBeginCapture");
    start_failing();
    const auto built = builder_->build(subject.batch->host(), subject.batch->lengths(), stream.get());
    device::stop_failing();
    Graph graph;
    device::require_hip(hipStreamEndCapture(stream.get(), &graph.graph), "hipStreamEndCapture");
    if (!built) {
      expect_hip_error(built.error());
      return device::require_hip(hipGraphDestroy(graph.graph), "hipGraphDestroy");
    }
    graph.metadata = *built;
    device::require_hip(hipGraphInstantiate(&graph.exec, graph.graph, nullptr, nullptr, 0), "hipGraphInstantiate");
    graphs_.push_back(graph);
  }

  void replay(const Subject& subject, const device::Stream& stream) {
    if (graphs_.empty()) return;
    Graph& graph = graphs_[static_cast<std::size_t>(random_.below(std::ssize(graphs_)))];
    // All graphs write one set of outputs: their order is the caller's.
    if (replayed_on_ != nullptr) replayed_on_->wait();
    replayed_on_ = &stream;
    start_failing();
    const auto replayed =
        builder_->restage(graph.metadata, subject.batch->host(), subject.batch->lengths(), stream.get());
    device::stop_failing();
    if (!replayed) {
      if (replayed.error().kind != Error::graph_mismatch) expect_hip_error(replayed.error());
      return;
    }
    graph.metadata = *replayed;
    device::require_hip(hipGraphLaunch(graph.exec, stream.get()), "hipGraphLaunch");
    ++num_replays_;
    if (random_.chance(70)) look_at({*replayed, &subject, &stream}, "replay");
    if (last_ && random_.chance(20)) look_at(*last_, "build before a replay");
  }

  void look_at(const Queued& queued, const char* what) {
    ++num_seen_;
    const Subject& subject = *queued.subject;
    const auto differs = device::compare(device::download(queued.metadata, *queued.stream),
                                         {subject.batch->reference(), *subject.host, *subject.reference});
    EXPECT_FALSE(differs) << "seed " << seed_ << ", " << what << ": " << differs->where << ": " << differs->what;
  }

  void end_builder(std::int64_t live_before) {
    last_.reset();
    builder_.reset();
    EXPECT_EQ(device::counts().live_allocations, live_before) << "seed " << seed_;
  }

  std::uint64_t seed_;
  Random random_;
  std::vector<std::unique_ptr<Subject>> subjects_;
  Capacity capacity_;
  device::Stream streams_[3];
  const device::Stream* replayed_on_ = nullptr;
  std::unique_ptr<DeviceMetadataBuilder> builder_;
  std::optional<Queued> last_;
  std::vector<Graph> graphs_;
  std::int64_t num_seen_ = 0;
  std::int64_t num_failed_ = 0;
  std::int64_t num_replays_ = 0;
};

TEST(DeviceStress, any_use_with_failing_calls_leaves_a_builder_that_works) {
  if (const auto reason = device::no_device()) GTEST_SKIP() << *reason;
  if (!device::can_steer()) GTEST_SKIP() << "calls of this runtime cannot be made to fail";
  std::int64_t num_seen = 0;
  std::int64_t num_failed = 0;
  std::int64_t num_replays = 0;
  for (std::uint64_t seed = 0; seed < num_runs && !HasFailure(); ++seed) {
    Use use{seed};
    use.go();
    num_seen += use.num_seen();
    num_failed += use.num_failed();
    num_replays += use.num_replays();
  }
  device::follow({});
  fmt::print("{} builds and replays looked at, {} replays, {} operations failed\n", num_seen, num_replays, num_failed);
  // Without these the test would say nothing.
  EXPECT_GT(num_seen, static_cast<std::int64_t>(num_runs));
  EXPECT_GT(num_failed, static_cast<std::int64_t>(num_runs));
  EXPECT_GT(num_replays, static_cast<std::int64_t>(num_runs));
}

}  // namespace
