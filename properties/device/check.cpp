#include "properties/device/check.hpp"

#include "attn/checked.hpp"
#include "properties/compare.hpp"
#include "properties/device/expect.hpp"
#include "properties/device/run.hpp"
#include "properties/device/steer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace properties::device {
namespace {

using attn::device::Capacity;
using attn::device::DeviceMetadata;
using attn::device::DeviceMetadataBuilder;
using attn::device::Tiling;

constexpr std::array table_of_claims{
    Claim{"D1", "the device's metadata equals the CPU path's, and so does what it refuses"},
    Claim{"D2", "a build copies nothing back and waits for nothing"},
    Claim{"D3", "a build allocates nothing"},
    Claim{"D4", "a captured build replays on new data"},
    Claim{"D5", "the result does not depend on the order of threads, blocks and streams"},
    Claim{
        "D6",
        "a HIP call that fails ends in an error, no leak, the last metadata as it was, and a next build that is right"},
    Claim{"D7", "no two threads race"},
};

using properties::set_invariant_in_progress;

Finding finding_of(std::string_view id, const Difference& difference) {
  const auto found =
      std::find_if(table_of_claims.begin(), table_of_claims.end(), [&](const Claim& claim) { return claim.id == id; });
  return {std::string{id}, std::string{found->claim}, difference.where, difference.what};
}

std::optional<Finding> finding_of(std::string_view id, std::string_view where, Verdict verdict) {
  if (!verdict) return std::nullopt;
  verdict->where = fmt::format("{}, {}", where, verdict->where);
  return finding_of(id, *verdict);
}

using Result = tl::expected<attn::Metadata, attn::Error>;

/// Array entries that a builder of this capacity holds in each of its sets, nearly.
std::int64_t entries_of(const Capacity& capacity) {
  return 8 * std::int64_t{capacity.max_reqs} + capacity.max_query_tokens + 4 * std::int64_t{capacity.max_chunks} +
         3 * capacity.max_slices + capacity.max_context_tokens + capacity.max_window_tokens;
}

/// A step as the device gets it, with what the CPU path says of it.
class Subject {
 public:
  Subject(std::unique_ptr<DeviceBatch> batch, std::int64_t max_entries)
      : batch_(std::move(batch)), host_builder_(max_entries), reference_builder_(max_entries) {
    host_ = host_builder_.build(batch_->host());
    const attn::ChunkPolicy policy = batch_->host().config.chunk_policy;
    if (host_ && policy == attn::ChunkPolicy::mla)
      host_ = tl::unexpected(attn::Error{attn::Error::unsupported_policy, -1, 0, 0, attn::name(policy)});
    if (!host_) return;
    reference_ = batch_->kind() == LengthKind::host ? host_ : reference_builder_.build(batch_->reference());
    // The device writes a position for each query token, where the CPU path has no array of that length.
    const auto capacity = attn::device::required_capacity(batch_->host());
    is_too_large_ = capacity && entries_of(*capacity) > 4 * max_entries;
  }

  [[nodiscard]] DeviceBatch& batch() const { return *batch_; }
  [[nodiscard]] const Result& host() const { return host_; }
  /// Larger than what this run may build.
  [[nodiscard]] bool is_too_large() const {
    return is_too_large_ || (!host_ && host_.error().kind == attn::Error::capacity_exceeded);
  }
  [[nodiscard]] Verdict compare_with(const Downloaded& found) const {
    if (!reference_) return Difference{"the CPU path", attn::message(reference_.error())};
    return compare(found, Expected{batch_->reference(), *host_, *reference_, batch_->num_clamped()});
  }

 private:
  std::unique_ptr<DeviceBatch> batch_;
  attn::MetadataBuilder host_builder_;
  attn::MetadataBuilder reference_builder_;
  Result host_;
  Result reference_;
  bool is_too_large_ = false;
};

std::unique_ptr<Subject> make_subject(const batchtext::Step& step, LengthKind kind, std::int64_t max_entries) {
  auto batch = DeviceBatch::make(step, kind);
  return batch ? std::make_unique<Subject>(std::move(batch), max_entries) : nullptr;
}

/// The kind that `number` chooses, or the host's where the step has it not.
std::unique_ptr<Subject> choose_subject(const batchtext::Step& step, std::uint64_t number, std::int64_t max_entries) {
  auto chosen = make_subject(step, length_kinds[number % std::size(length_kinds)], max_entries);
  return chosen ? std::move(chosen) : make_subject(step, LengthKind::host, max_entries);
}

/// A tiling that cuts the rows of a batch of this capacity as the default cuts rows of thousands: into a few tiles,
/// each a segment of its own or several to a segment. Every other one is the default.
Tiling tiling_of(std::uint64_t seed, const Capacity& capacity) {
  // An execution's time is in its tiles: a row of many passes has few of them too.
  constexpr std::int32_t most_tiles_of_passes = 16;
  constexpr std::int32_t num_tiles[]{2, 0, 3, 0, 5, 0};
  constexpr std::int32_t max_segments[]{attn::device::max_row_segments, 0, 2, 0, 3, 0};
  const std::size_t choice = seed % std::size(num_tiles);
  if (num_tiles[choice] == 0) return {};
  const std::int64_t extends =
      capacity.max_chunks > 0 ? capacity.max_slices / capacity.max_chunks : std::int64_t{capacity.max_reqs};
  const std::int64_t items = std::max({std::int64_t{1}, attn::ceil_div(extends, num_tiles[choice]),
                                       attn::ceil_div(capacity.max_chunks, most_tiles_of_passes)});
  return {static_cast<std::int32_t>(std::min<std::int64_t>(items, attn::device::max_tile_items)), max_segments[choice]};
}

/// Half of the seeds each, whatever else a seed chooses.
Rules rules_of(std::uint64_t seed) { return seed / 4 % 2 == 0 ? Rules::amd : Rules::portable; }
Rules other(Rules rules) { return rules == Rules::amd ? Rules::portable : Rules::amd; }

/// The order that forgives most first: what is queued runs at once, threads one after the other. Then what the seed
/// says, as late as can be, by the rules that the seed says; where there is time, by the others as well.
std::vector<Schedule> schedules_of(const batchtext::Step& step, bool thorough) {
  const auto seed = static_cast<std::uint64_t>(step.schedule_seed);
  const Rules rules = rules_of(seed);
  std::vector<Schedule> schedules{
      {.is_eager = true, .warp_size = 32, .rules = other(rules)},
      {.seed = seed + 1, .warp_size = seed % 2 == 0 ? 64 : 32, .rules = rules},
  };
  if (thorough) schedules.push_back({.seed = seed + 1, .warp_size = seed % 2 == 0 ? 32 : 64, .rules = other(rules)});
  return schedules;
}

std::string said(const attn::Error& error) { return attn::message(error); }

/// A result that should have been metadata.
Finding unexpected_error(std::string_view id, std::string_view where, const attn::Error& error) {
  return finding_of(id, Difference{std::string{where}, fmt::format("refused: {}", said(error))});
}

// ---- D1, D2, D3, D5: one build --------------------------------------------------------------------------------------

/// What the CPU path refuses, the device path refuses with the same words, before anything is queued.
std::optional<Finding> check_refusal(const Subject& subject, std::string_view where) {
  set_invariant_in_progress("D1");
  const attn::Error& expected = subject.host().error();
  const Stream stream;
  auto builder = DeviceMetadataBuilder::create({.max_reqs = 1, .captures = false});
  if (!builder) return unexpected_error("D1", where, builder.error());
  const Counts before = counts();
  const auto found = builder->build(subject.batch().host(), subject.batch().lengths(), stream.get());
  const Counts after = counts();
  if (found)
    return finding_of("D1", Difference{std::string{where}, fmt::format("metadata, expected {}", said(expected))});
  if (found.error() != expected)
    return finding_of(
        "D1", Difference{std::string{where}, fmt::format("{}, expected {}", said(found.error()), said(expected))});
  if (after.launches != before.launches || after.host_to_device_bytes != before.host_to_device_bytes)
    return finding_of("D1", Difference{std::string{where}, "work was queued for a batch that is refused"});
  return std::nullopt;
}

/// `may_wait`: more builds are under way than the capacity has room for, and the oldest of them may have to read its
/// input first. That is one wait.
std::optional<Finding> check_costs(const Counts& before, const Counts& after, bool may_wait, std::string_view where) {
  set_invariant_in_progress("D2");
  if (auto finding = finding_of(
          "D2", where,
          properties::compare("bytes copied to the host", after.device_to_host_bytes - before.device_to_host_bytes, 0)))
    return finding;
  const std::int64_t waits = after.synchronisations - before.synchronisations;
  if (!may_wait || waits != 1)
    if (auto finding = finding_of("D2", where, properties::compare("synchronisations", waits, 0))) return finding;
  if (auto finding = finding_of("D2", where,
                                properties::compare("copies of memory that is not pinned",
                                                    after.pageable_copies - before.pageable_copies, 0)))
    return finding;
  set_invariant_in_progress("D3");
  return finding_of("D3", where, properties::compare("allocations", after.allocations - before.allocations, 0));
}

/// One build on a builder of exactly the capacity the batch needs, so that whatever leaves an array leaves an
/// allocation.
tl::expected<Downloaded, Finding> build_once(const Subject& subject, std::uint64_t tiling_seed,
                                             std::string_view where) {
  auto capacity = attn::device::required_capacity(subject.batch().host());
  if (!capacity) return tl::unexpected(unexpected_error("D1", where, capacity.error()));
  capacity->captures = false;
  capacity->builds_in_flight = 1;
  // A stream outlives the builder that has used it.
  const Stream stream;
  auto builder = DeviceMetadataBuilder::create(*capacity, tiling_of(tiling_seed, *capacity));
  if (!builder) return tl::unexpected(unexpected_error("D1", where, builder.error()));
  subject.batch().upload();
  const Counts before = counts();
  const auto built = builder->build(subject.batch().host(), subject.batch().lengths(), stream.get());
  const Counts after = counts();
  if (!built) return tl::unexpected(unexpected_error("D1", where, built.error()));
  if (auto finding = check_costs(before, after, false, where)) return tl::unexpected(*finding);
  set_invariant_in_progress("D1");
  return download(*built, stream);
}

std::optional<Finding> check_builds(const batchtext::Step& step, LengthKind kind, const Scope& scope) {
  std::optional<Downloaded> first;
  auto tiling_seed = static_cast<std::uint64_t>(step.schedule_seed);
  for (const Schedule& schedule : schedules_of(step, scope.thorough)) {
    if (first && !scope.thorough && kind == LengthKind::host) break;
    follow(schedule);
    // Made anew for each, so that its upload is still under way when the build is queued.
    const auto subject = make_subject(step, kind, scope.max_entries);
    if (!subject || subject->is_too_large()) return std::nullopt;
    const std::string where = name(kind);
    if (!subject->host()) return check_refusal(*subject, where);
    set_invariant_in_progress(first ? "D5" : "D1");
    auto found = build_once(*subject, tiling_seed++, where);
    if (!found) return found.error();
    if (!first) {
      if (auto finding = finding_of("D1", where, subject->compare_with(*found))) return finding;
      first = std::move(*found);
      if (!can_steer()) return std::nullopt;
    } else if (auto finding = finding_of("D5", where, compare(*found, *first))) {
      return finding;
    }
  }
  return std::nullopt;
}

// ---- D1, D4: several builds -----------------------------------------------------------------------------------------

/// A build that is queued, and what has to come of it.
struct Queued {
  DeviceMetadata metadata;
  const Subject* subject = nullptr;
  const Stream* stream = nullptr;
  std::string where;
};

/// Steps of the same rows as `step`, as a server would hand them over next: contexts half as long, under the old
/// bounds; the last row turned to padding; two rows of a class exchanged.
std::vector<batchtext::Step> variants_of(const batchtext::Step& step) {
  std::vector<batchtext::Step> variants;
  const bool follows_requests = !step.query_start_loc && !step.num_reqs &&
                                step.seq_lens.source == batchtext::Lens::from_batch &&
                                step.seq_lens_upper_bound.source != batchtext::Lens::raw && !step.requests.empty();
  if (!follows_requests) return variants;
  batchtext::Step shorter = step;
  shorter.seq_lens_upper_bound = {batchtext::Lens::raw, {}};
  for (batchtext::Request& request : shorter.requests) {
    shorter.seq_lens_upper_bound.values.push_back(request.seq_len);
    if (request.seq_len > request.query_len)
      request.seq_len = request.query_len + (request.seq_len - request.query_len) / 2;
  }
  shorter.max_seq_len = step.max_seq_len;
  if (!shorter.max_seq_len)
    shorter.max_seq_len =
        *std::max_element(shorter.seq_lens_upper_bound.values.begin(), shorter.seq_lens_upper_bound.values.end());
  variants.push_back(shorter);
  batchtext::Step padded = step;
  padded.requests.back().query_len = 0;
  variants.push_back(padded);
  batchtext::Step exchanged = step;
  auto& requests = exchanged.requests;
  // Of one class: a prefill that gives way to a row of another length would make an extend of that, which needs
  // kernels.
  const auto is_prefill = [](const batchtext::Request& request) { return request.seq_len == request.query_len; };
  if (requests.size() > 3 && requests[1].query_len == requests[2].query_len &&
      is_prefill(requests[1]) == is_prefill(requests[2]))
    std::swap(requests[1], requests[2]);
  variants.push_back(exchanged);
  return variants;
}

/// The inputs that a builder has queued on its staging memory, and which of them the device must have read by now.
class Inputs {
 public:
  explicit Inputs(std::int32_t builds_in_flight) : builds_in_flight_(static_cast<std::size_t>(builds_in_flight)) {}

  /// Whether the next one has to wait for the oldest of `builds_in_flight`.
  [[nodiscard]] bool may_wait() const {
    return streams_.size() >= builds_in_flight_ && streams_[streams_.size() - builds_in_flight_] != nullptr;
  }
  void queued_on(const Stream& stream) { streams_.push_back(&stream); }
  /// The host has waited for all that `stream` had to do.
  void waited_for(const Stream& stream) { std::replace(streams_.begin(), streams_.end(), &stream, no_stream); }

 private:
  static constexpr const Stream* no_stream = nullptr;

  std::size_t builds_in_flight_;
  std::vector<const Stream*> streams_;  ///< of each input in turn; null where it has been read
};

class Sequence {
 public:
  Sequence(const batchtext::Case& parsed, const Scope& scope) {
    for (std::size_t i = 0; i < parsed.steps.size(); ++i) {
      const batchtext::Step& step = parsed.steps[i];
      seed_ += static_cast<std::uint64_t>(step.schedule_seed);
      auto subject = choose_subject(step, seed_ + i, scope.max_entries);
      if (subject->is_too_large()) continue;
      if (const auto needed = attn::device::required_capacity(subject->batch().host())) {
        capacity_ = max(capacity_, *needed);
        buildable_.push_back(subjects_.size());
        steps_.push_back(&step);
      }
      subjects_.push_back(std::move(subject));
    }
    if (!buildable_.empty()) make_variants(scope.max_entries);
  }

  std::optional<Finding> check() {
    if (buildable_.empty()) return std::nullopt;
    follow(
        {.seed = seed_, .is_eager = seed_ % 4 == 3, .warp_size = seed_ % 2 == 0 ? 64 : 32, .rules = rules_of(seed_)});
    bits_ = (seed_ + 1) * 0x9e3779b97f4a7c15u;
    set_invariant_in_progress("D1");
    // Above two, a build may not wait though both sets of outputs are still to be written. With one in flight each
    // build has to wait until the copy of the one before has been made.
    constexpr std::int32_t in_flight[]{3, 1, 2, 4};
    capacity_.builds_in_flight = in_flight[seed_ % std::size(in_flight)];
    inputs_ = Inputs{capacity_.builds_in_flight};
    auto builder = DeviceMetadataBuilder::create(capacity_, tiling_of(seed_, capacity_));
    if (!builder) return unexpected_error("D1", "create", builder.error());
    for (const auto& subject : subjects_) subject->batch().upload();
    for (const auto& variant : variants_) variant->batch().upload();
    if (auto finding = check_steps(*builder)) return finding;
    return check_replays(*builder);
  }

 private:
  /// Steps on streams that the seed chooses, once more from the first where they are few: as many builds as can be
  /// under way with nobody looking. Each is looked at when the next one is queued, and still has to stand; or is not,
  /// where the seed says so, and is under way when the next but one begins.
  std::optional<Finding> check_steps(DeviceMetadataBuilder& builder) {
    constexpr std::size_t least_builds = 4;
    std::optional<Queued> last;
    for (std::size_t i = 0; i < std::max(subjects_.size(), least_builds); ++i) {
      const Subject& subject = *subjects_[i % subjects_.size()];
      const Stream& stream = streams_[choice(i) % std::size(streams_)];
      const std::string where = fmt::format("step {}, build {}", i % subjects_.size() + 1, i + 1);
      set_invariant_in_progress("D1");
      const Counts before = counts();
      const auto built = builder.build(subject.batch().host(), subject.batch().lengths(), stream.get());
      if (auto finding = check_costs(before, counts(), inputs_.may_wait(), where)) return finding;
      set_invariant_in_progress("D1");
      if (auto finding = check_answer(built, subject, where)) return finding;
      if (last && looks(i))
        if (auto finding = look_at(*last)) return finding;
      if (!built) continue;
      inputs_.queued_on(stream);
      last = Queued{*built, &subject, &stream, where};
    }
    if (!last) return std::nullopt;
    if (auto finding = look_at(*last)) return finding;
    // Nor does what was under way come late and write over it.
    require_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
    return look_at(*last);
  }

  /// Bits for the i-th build.
  [[nodiscard]] std::uint64_t choice(std::size_t i) const { return bits_ >> (8 * (i % 8)); }
  /// Whether the build before the i-th is looked at once that is queued.
  [[nodiscard]] bool looks(std::size_t i) const { return (choice(i) & 128) != 0; }

  /// Metadata where the CPU path has it, and the same error where it has none.
  static std::optional<Finding> check_answer(const tl::expected<DeviceMetadata, attn::Error>& built,
                                             const Subject& subject, const std::string& where) {
    if (built.has_value() == subject.host().has_value() && (built || built.error() == subject.host().error()))
      return std::nullopt;
    return finding_of("D1", Difference{where, fmt::format("{}, expected {}", built ? "metadata" : said(built.error()),
                                                          subject.host() ? "metadata" : said(subject.host().error()))});
  }

  std::optional<Finding> look_at(const Queued& queued) {
    const Downloaded found = download(queued.metadata, *queued.stream);
    inputs_.waited_for(*queued.stream);
    return finding_of("D1", queued.where, queued.subject->compare_with(found));
  }

  /// One step's build, captured, replayed on every step that it has kernels for.
  std::optional<Finding> check_replays(DeviceMetadataBuilder& builder) {
    set_invariant_in_progress("D4");
    const Stream& stream = streams_[0];
    const Subject& captured = *subjects_[buildable_[captured_at()]];
    const hipError_t begun = hipStreamBeginCapture(stream.get(), hipStreamCaptureModeGlobal);
    if (begun == hipErrorNotSupported) return std::nullopt;  // a runtime without graphs
    require_hip(begun, "hipStreamBeginCapture");
    const auto built = builder.build(captured.batch().host(), captured.batch().lengths(), stream.get());
    hipGraph_t graph = nullptr;
    const hipError_t ended = hipStreamEndCapture(stream.get(), &graph);
    if (!built && graph != nullptr) require_hip(hipGraphDestroy(graph), "hipGraphDestroy");
    if (!built) return unexpected_error("D4", "capture", built.error());
    if (ended != hipSuccess)
      return finding_of("D4", Difference{"capture", fmt::format("lost: {}", hipGetErrorName(ended))});
    hipGraphExec_t exec = nullptr;
    require_hip(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), "hipGraphInstantiate");
    auto finding = replay_all(builder, *built, captured, exec);
    require_hip(hipGraphExecDestroy(exec), "hipGraphExecDestroy");
    require_hip(hipGraphDestroy(graph), "hipGraphDestroy");
    return finding;
  }

  std::optional<Finding> replay_all(DeviceMetadataBuilder& builder, const DeviceMetadata& built,
                                    const Subject& captured, hipGraphExec_t exec) {
    std::size_t i = 0;
    for (const std::size_t at : buildable_)
      if (auto finding = replay(builder, built, *subjects_[at], exec, "replay of another step", true, looks(i++)))
        return finding;
    for (const auto& variant : variants_)
      if (auto finding =
              replay(builder, built, *variant, exec, "replay of the captured step, changed", false, looks(i++)))
        return finding;
    // The captured step itself last, when the others have left their data behind.
    return replay(builder, built, captured, exec, "replay of the captured step", false, true);
  }

  std::optional<Finding> replay(DeviceMetadataBuilder& builder, const DeviceMetadata& built, const Subject& subject,
                                hipGraphExec_t exec, std::string_view where, bool may_need_other_kernels, bool looks) {
    const Counts before = counts();
    const auto replayed = builder.restage(built, subject.batch().host(), subject.batch().lengths(), streams_[0].get());
    const Counts after = counts();
    if (!replayed && replayed.error().kind == attn::Error::graph_mismatch && may_need_other_kernels)
      return check_mismatch(builder, built, subject, replayed.error(), where);
    if (!replayed) return unexpected_error("D4", where, replayed.error());
    if (auto finding = check_costs(before, after, inputs_.may_wait(), where)) return finding;
    inputs_.queued_on(streams_[0]);
    set_invariant_in_progress("D4");
    require_hip(hipGraphLaunch(exec, streams_[0].get()), "hipGraphLaunch");
    // The next replay writes over one that nobody looks at.
    if (!looks) return std::nullopt;
    const Downloaded found = download(*replayed, streams_[0]);
    inputs_.waited_for(streams_[0]);
    return finding_of("D4", where, subject.compare_with(found));
  }

  /// A graph that cannot take a batch says what it has otherwise: the number of requests, or how many kernels it lacks.
  /// Which ones the batch needs, a build outside the graph tells.
  std::optional<Finding> check_mismatch(DeviceMetadataBuilder& builder, const DeviceMetadata& captured,
                                        const Subject& subject, const attn::Error& found, std::string_view where) {
    const auto built = builder.build(subject.batch().host(), subject.batch().lengths(), streams_[0].get());
    if (!built) return unexpected_error("D4", where, built.error());
    // Nothing of it is under way when the next replay counts what it waits for.
    require_hip(hipStreamSynchronize(streams_[0].get()), "hipStreamSynchronize");
    const int num_missing = std::popcount(built->kernels & ~captured.kernels);
    const attn::Error expected =
        built->num_reqs != captured.num_reqs
            ? attn::Error{attn::Error::graph_mismatch, -1, built->num_reqs, captured.num_reqs, "requests"}
            : attn::Error{attn::Error::graph_mismatch, -1, num_missing, 0, "kernels that were not captured"};
    if (expected.value == expected.limit)
      return finding_of("D4", Difference{std::string{where}, fmt::format("{}, but it has all", said(found))});
    if (found == expected) return std::nullopt;
    return finding_of("D4", Difference{std::string{where}, fmt::format("{} (index {}), expected {}", said(found),
                                                                       found.index, said(expected))});
  }

  [[nodiscard]] std::size_t captured_at() const { return seed_ % buildable_.size(); }

  /// What the captured step may turn into from one replay to the next, and needs no other kernel for.
  void make_variants(std::int64_t max_entries) {
    for (const batchtext::Step& step : variants_of(*steps_[captured_at()])) {
      auto variant = choose_subject(step, seed_ + variants_.size(), max_entries);
      if (variant->is_too_large() || !variant->host()) continue;
      capacity_ = max(capacity_, *attn::device::required_capacity(variant->batch().host()));
      variants_.push_back(std::move(variant));
    }
  }

  std::vector<std::unique_ptr<Subject>> subjects_;
  std::vector<std::size_t> buildable_;              ///< of those, which are no refusals
  std::vector<const batchtext::Step*> steps_;       ///< of the buildable ones
  std::vector<std::unique_ptr<Subject>> variants_;  ///< of the captured one
  Capacity capacity_;
  std::uint64_t seed_ = 0;
  std::uint64_t bits_ = 0;  ///< of the seed, spread: eight for each build
  Inputs inputs_{1};
  Stream streams_[3];
};

// ---- D6: failing calls ----------------------------------------------------------------------------------------------

class Faults {
 public:
  Faults(const batchtext::Step& step, const Scope& scope)
      : step_(step),
        subject_(choose_subject(step, static_cast<std::uint64_t>(step.schedule_seed), scope.max_entries)) {}

  std::optional<Finding> check() {
    if (!subject_->host() || subject_->is_too_large()) return std::nullopt;
    const auto seed = static_cast<std::uint64_t>(step_.schedule_seed);
    follow({.seed = seed, .rules = rules_of(seed)});
    set_invariant_in_progress("D6");
    const auto capacity = attn::device::required_capacity(subject_->batch().host());
    if (!capacity) return unexpected_error("D6", "capacity", capacity.error());
    if (auto finding = fail_in_create(*capacity)) return finding;
    auto builder = DeviceMetadataBuilder::create(*capacity, tiling_for(*capacity));
    if (!builder) return unexpected_error("D6", "create", builder.error());
    subject_->batch().upload();
    Queued last;
    if (auto finding = build_right(*builder, "first build", last)) return finding;
    if (auto finding = build_right(*builder, "second build", last)) return finding;
    bool happened = true;
    for (std::int64_t n = step_.fail_call.value_or(1); happened; ++n) {
      if (auto finding = fail_in_build(*builder, n, last, happened)) return finding;
      if (step_.fail_call) break;
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] Tiling tiling_for(const Capacity& capacity) const {
    return tiling_of(static_cast<std::uint64_t>(step_.schedule_seed), capacity);
  }

  static hipError_t error_of(std::int64_t n) {
    constexpr hipError_t errors[]{hipErrorOutOfMemory, hipErrorLaunchFailure, hipErrorInvalidValue, hipErrorUnknown};
    return errors[n % static_cast<std::int64_t>(std::size(errors))];
  }

  /// Every call of `create` in turn. Only where no single call of a build is asked for.
  std::optional<Finding> fail_in_create(const Capacity& capacity) {
    if (step_.fail_call) return std::nullopt;
    for (std::int64_t n = 1;; ++n) {
      const Counts before = counts();
      fail_call(n, error_of(n));
      const auto builder = DeviceMetadataBuilder::create(capacity, tiling_for(capacity));
      if (!stop_failing()) return std::nullopt;
      const std::string where = fmt::format("create, call {} ({})", n, failed_function());
      if (auto finding = check_error(builder, n, where)) return finding;
      if (auto finding = check_leaks(before, where)) return finding;
    }
  }

  /// A build that nothing disturbs, looked at; becomes the last one.
  std::optional<Finding> build_right(DeviceMetadataBuilder& builder, std::string_view where, Queued& last) {
    const auto built = builder.build(subject_->batch().host(), subject_->batch().lengths(), stream_.get());
    if (!built) return unexpected_error("D6", where, built.error());
    // The one before stands beside this one.
    if (last.subject != nullptr)
      if (auto finding = finding_of("D6", fmt::format("{}, metadata of the build before", where),
                                    subject_->compare_with(download(last.metadata, stream_))))
        return finding;
    last = Queued{*built, subject_.get(), &stream_, std::string{where}};
    return finding_of("D6", where, subject_->compare_with(download(*built, stream_)));
  }

  /// `happened` is false when a build has fewer than n calls.
  std::optional<Finding> fail_in_build(DeviceMetadataBuilder& builder, std::int64_t n, Queued& last, bool& happened) {
    const Counts before = counts();
    fail_call(n, error_of(n));
    const auto built = builder.build(subject_->batch().host(), subject_->batch().lengths(), stream_.get());
    happened = stop_failing();
    if (!happened) return built ? std::nullopt : std::optional{unexpected_error("D6", "build", built.error())};
    const std::string where = fmt::format("build, call {} ({})", n, failed_function());
    if (auto finding = check_error(built, n, where)) return finding;
    if (auto finding = check_leaks(before, where)) return finding;
    if (auto finding = finding_of("D6", where + ", metadata of the build before",
                                  subject_->compare_with(download(last.metadata, stream_))))
      return finding;
    return build_right(builder, where + ", next build", last);
  }

  template <class T>
  static std::optional<Finding> check_error(const tl::expected<T, attn::Error>& result, std::int64_t n,
                                            const std::string& where) {
    if (result) return finding_of("D6", Difference{where, "failed, and nobody noticed"});
    // A launch has no call of its own in HIP's interface: what fails is asked for afterwards.
    const std::string_view expected = failed_function() == "hipLaunchKernel" ? "hipLaunchKernelGGL" : failed_function();
    if (result.error() == attn::Error{attn::Error::device, -1, error_of(n), 0, expected, hipGetErrorName(error_of(n))})
      return std::nullopt;
    return finding_of("D6", Difference{where, fmt::format("{}, expected {} failed with {}", said(result.error()),
                                                          expected, hipGetErrorName(error_of(n)))});
  }

  static std::optional<Finding> check_leaks(const Counts& before, const std::string& where) {
    const Counts after = counts();
    if (auto finding = finding_of(
            "D6", where, properties::compare("live allocations", after.live_allocations, before.live_allocations)))
      return finding;
    return finding_of("D6", where,
                      properties::compare("live streams, events and graphs", after.live_handles, before.live_handles));
  }

  const batchtext::Step& step_;
  std::unique_ptr<Subject> subject_;
  Stream stream_;
};

std::optional<Finding> check_step(const batchtext::Step& step, const Scope& scope) {
  if (scope.observe != nullptr) {
    const batchtext::Arrays arrays{step};
    attn::MetadataBuilder builder{scope.max_entries};
    scope.observe(arrays.batch(), builder.build(arrays.batch()));
  }
  const LengthKind left_out = step.schedule_seed % 4 < 2 ? LengthKind::computed : LengthKind::exact;
  if (scope.builds)
    for (const LengthKind kind : length_kinds)
      if (scope.thorough || kind != left_out)
        if (auto finding = check_builds(step, kind, scope)) return finding;
  if (scope.faults && can_steer()) {
    Faults faults{step, scope};
    return faults.check();
  }
  return std::nullopt;
}

std::optional<Finding> check_all(const batchtext::Case& parsed, const Scope& scope) {
  for (std::size_t i = 0; i < parsed.steps.size(); ++i) {
    auto finding = check_step(parsed.steps[i], scope);
    if (!finding) continue;
    if (parsed.steps.size() > 1) finding->where = fmt::format("step {}, {}", i + 1, finding->where);
    return finding;
  }
  if (!scope.sequence) return std::nullopt;
  Sequence sequence{parsed, scope};
  return sequence.check();
}

}  // namespace

std::span<const Claim> claims() { return table_of_claims; }

std::int64_t num_left_out(const batchtext::Case& parsed, std::int64_t max_entries) {
  return std::count_if(parsed.steps.begin(), parsed.steps.end(), [&](const batchtext::Step& step) {
    return make_subject(step, LengthKind::host, max_entries)->is_too_large();
  });
}

std::optional<Finding> check_case(const batchtext::Case& parsed, const Scope& scope) {
  if (no_device()) return std::nullopt;
  const std::int64_t races_before = num_races();
  auto finding = check_all(parsed, scope);
  if (finding && can_steer()) finding->difference += fmt::format(", by {} rules", name(followed_rules()));
  follow({});
  // First of all, since a race explains whatever else is wrong.
  if (num_races() != races_before)
    finding = finding_of("D7", Difference{"kernels or streams", "ThreadSanitizer has reported a race"});
  set_invariant_in_progress({});
  return finding;
}

}  // namespace properties::device
