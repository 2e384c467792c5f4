#include "attn/device/device_metadata.hpp"

#include "attn/device/capacity.hpp"
#include "attn/device/job.hpp"
#include "attn/device/output_set.hpp"
#include "attn/device/owned.hpp"
#include "attn/plan.hpp"

#include <array>
#include <bit>
#include <new>
#include <utility>

namespace attn::device {
namespace {

/// Pinned memory for the input of one build.
struct StagingSlot {
  PinnedBlock memory;
  Event copied;            ///< behind the copy that reads it
  bool is_in_use = false;  ///< such a copy has been queued, and may not have run
};

/// Outputs of the builds that are not captured.
struct BuildSet {
  OutputSet outputs;
  Event done;              ///< behind the build that writes them
  bool is_in_use = false;  ///< such a build has been queued, and may not have run
};

/// A capture asked of a builder that was made without room for it.
constexpr Error no_captures{Error::invalid_capacity, -1, 0, 1, "captures"};

tl::expected<bool, Error> is_being_captured(hipStream_t stream) noexcept {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  if (auto error = check(hipStreamIsCapturing(stream, &status), "hipStreamIsCapturing")) return tl::unexpected(*error);
  if (status == hipStreamCaptureStatusInvalidated)
    return tl::unexpected(*check(hipErrorStreamCaptureInvalidated, "hipStreamIsCapturing"));
  return status == hipStreamCaptureStatusActive;
}

tl::expected<PlannedBatch, Error> plan_within(const Capacity& capacity, const Batch& batch,
                                              const DeviceLengths& lengths) noexcept {
  const auto plan = make_plan(batch);
  if (!plan) return tl::unexpected(plan.error());
  if (auto error = check_policy(batch)) return tl::unexpected(*error);
  if (auto error = check_fit(batch, *plan, capacity)) return tl::unexpected(*error);
  return PlannedBatch{batch, lengths, *plan, num_unpadded_reqs(batch)};
}

/// Whether the graph that holds the build `captured` makes the metadata `wanted` as well.
std::optional<Error> check_graph(const DeviceMetadata& captured, const DeviceMetadata& wanted) noexcept {
  if (wanted.scalars != captured.scalars)
    return Error{Error::graph_mismatch, -1, 1, 0, "build captured with this builder"};
  if (wanted.num_reqs != captured.num_reqs)
    return Error{Error::graph_mismatch, -1, wanted.num_reqs, captured.num_reqs, "requests"};
  const int num_missing = std::popcount(wanted.kernels & ~captured.kernels);
  if (num_missing > 0) return Error{Error::graph_mismatch, -1, num_missing, 0, "kernels that were not captured"};
  return std::nullopt;
}

}  // namespace

/// Everything that is allocated, and what is queued with it.
///
/// What fails before a build's copy is queued leaves nothing behind. What fails from there on leaves work on the stream
/// whose end nobody has marked: then it is marked as part of the failure, and if that fails too, the next build waits
/// for all that the device has to do.
struct DeviceMetadataBuilder::State {
  Capacity capacity;
  int warp_size = 0;
  std::unique_ptr<StagingSlot[]> slots;  // [builds_in_flight], used in turn.
  std::int32_t next_slot = 0;
  std::array<BuildSet, 2> sets;  // Used in turn by the builds that succeed.
  std::size_t next_set = 0;
  OutputSet captured_outputs;  // Allocated if there are captures.
  bool has_captured = false;   // A graph runs whenever its owner likes.
  bool has_unmarked_work = false;

  State() noexcept = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  std::optional<Error> allocate(const Capacity& wanted, const Tiling& tiling) noexcept;
  tl::expected<StagingSlot*, Error> take_slot() noexcept;
  std::optional<Error> finish_unmarked_work() noexcept;
  void mark_end(Event& end, hipStream_t stream) noexcept;

  std::optional<Error> queue_input(StagingSlot& slot, const PlannedBatch& planned, const Job& job,
                                   const OutputSet& outputs, hipStream_t stream) noexcept;
  std::optional<Error> queue_build(StagingSlot& slot, const PlannedBatch& planned, const Job& job, BuildSet& set,
                                   hipStream_t stream) noexcept;
  std::optional<Error> launch(const Job& job, const OutputSet& outputs, hipStream_t stream) const noexcept;

  tl::expected<DeviceMetadata, Error> build(const PlannedBatch& planned, hipStream_t stream) noexcept;
  tl::expected<DeviceMetadata, Error> capture(const PlannedBatch& planned, hipStream_t stream) noexcept;
  tl::expected<DeviceMetadata, Error> restage(const DeviceMetadata& captured, const PlannedBatch& planned,
                                              hipStream_t stream) noexcept;
};

// ---- allocation, end ------------------------------------------------------------------------------------------------

std::optional<Error> DeviceMetadataBuilder::State::allocate(const Capacity& wanted, const Tiling& tiling) noexcept {
  capacity = wanted;
  int device = 0;
  if (auto error = check(hipGetDevice(&device), "hipGetDevice")) return error;
  if (auto error =
          check(hipDeviceGetAttribute(&warp_size, hipDeviceAttributeWarpSize, device), "hipDeviceGetAttribute"))
    return error;

  for (BuildSet& set : sets) {
    if (auto error = set.outputs.allocate(capacity, tiling)) return error;
    if (auto error = set.done.create()) return error;
  }
  if (capacity.captures)
    if (auto error = captured_outputs.allocate(capacity, tiling)) return error;

  const auto num_slots = static_cast<std::size_t>(capacity.builds_in_flight);
  slots.reset(new (std::nothrow) StagingSlot[num_slots]);
  if (slots == nullptr)
    return Error{Error::out_of_memory, -1, static_cast<std::int64_t>(num_slots * sizeof(StagingSlot)), 0};
  for (std::size_t i = 0; i < num_slots; ++i) {
    if (auto error = slots[i].memory.allocate(input_bytes(capacity.max_reqs))) return error;
    if (auto error = slots[i].copied.create()) return error;
  }
  return std::nullopt;
}

DeviceMetadataBuilder::State::~State() {
  // Not by the events: there are runtimes that look at the stream an event was recorded in, which may have ended.
  bool was_used = has_unmarked_work || has_captured;
  for (const BuildSet& set : sets) was_used |= set.is_in_use;
  if (was_used) (void)check(hipDeviceSynchronize(), "hipDeviceSynchronize");
}

// ---- what is in use -------------------------------------------------------------------------------------------------

tl::expected<StagingSlot*, Error> DeviceMetadataBuilder::State::take_slot() noexcept {
  if (auto error = finish_unmarked_work()) return tl::unexpected(*error);
  StagingSlot& slot = slots[static_cast<std::size_t>(next_slot)];
  if (slot.is_in_use)
    if (auto error = slot.copied.wait()) return tl::unexpected(*error);
  slot.is_in_use = false;
  next_slot = (next_slot + 1) % capacity.builds_in_flight;
  return &slot;
}

std::optional<Error> DeviceMetadataBuilder::State::finish_unmarked_work() noexcept {
  if (!has_unmarked_work) return std::nullopt;
  if (auto error = check(hipDeviceSynchronize(), "hipDeviceSynchronize")) return error;
  for (std::int32_t i = 0; i < capacity.builds_in_flight; ++i) slots[static_cast<std::size_t>(i)].is_in_use = false;
  for (BuildSet& set : sets) set.is_in_use = false;
  has_unmarked_work = false;
  return std::nullopt;
}

void DeviceMetadataBuilder::State::mark_end(Event& end, hipStream_t stream) noexcept {
  if (end.record(stream)) has_unmarked_work = true;
}

// ---- steps ----------------------------------------------------------------------------------------------------------

std::optional<Error> DeviceMetadataBuilder::State::queue_input(StagingSlot& slot, const PlannedBatch& planned,
                                                               const Job& job, const OutputSet& outputs,
                                                               hipStream_t stream) noexcept {
  const std::byte* staged = slot.memory.data();
  const std::size_t bytes = stage_input(planned, job, slot.memory.data());
  slot.is_in_use = true;
  if (auto error =
          check(hipMemcpyAsync(outputs.input(), staged, bytes, hipMemcpyHostToDevice, stream), "hipMemcpyAsync"))
    return error;
  if (auto error = slot.copied.record(stream)) return error;
  if (planned.lengths.ready == nullptr) return std::nullopt;
  return check(hipStreamWaitEvent(stream, planned.lengths.ready, 0), "hipStreamWaitEvent");
}

std::optional<Error> DeviceMetadataBuilder::State::queue_build(StagingSlot& slot, const PlannedBatch& planned,
                                                               const Job& job, BuildSet& set,
                                                               hipStream_t stream) noexcept {
  if (auto error = queue_input(slot, planned, job, set.outputs, stream)) return error;
  if (auto error = launch(job, set.outputs, stream)) return error;
  return set.done.record(stream);
}

std::optional<Error> DeviceMetadataBuilder::State::launch(const Job& job, const OutputSet& outputs,
                                                          hipStream_t stream) const noexcept {
  return check(launch_kernels(job, outputs.job_on_device(), warp_size, stream), "hipLaunchKernelGGL");
}

// ---- the three ways to make metadata --------------------------------------------------------------------------------

tl::expected<DeviceMetadata, Error> DeviceMetadataBuilder::State::build(const PlannedBatch& planned,
                                                                        hipStream_t stream) noexcept {
  const auto slot = take_slot();
  if (!slot) return tl::unexpected(slot.error());
  BuildSet& set = sets[next_set];
  // Even where the last build had the same stream: its handle may by now be that of another.
  if (set.is_in_use)
    if (auto error = set.done.hold_up(stream)) return tl::unexpected(*error);

  const Job job = set.outputs.job_for(planned);
  set.is_in_use = true;
  if (auto error = queue_build(**slot, planned, job, set, stream)) {
    mark_end((*slot)->copied, stream);
    mark_end(set.done, stream);
    return tl::unexpected(*error);
  }
  next_set = 1 - next_set;
  return describe(planned, job);
}

tl::expected<DeviceMetadata, Error> DeviceMetadataBuilder::State::capture(const PlannedBatch& planned,
                                                                          hipStream_t stream) noexcept {
  const Job job = captured_outputs.job_for(planned);
  has_captured = true;
  if (auto error = launch(job, captured_outputs, stream)) return tl::unexpected(*error);
  return describe(planned, job);
}

tl::expected<DeviceMetadata, Error> DeviceMetadataBuilder::State::restage(const DeviceMetadata& captured,
                                                                          const PlannedBatch& planned,
                                                                          hipStream_t stream) noexcept {
  const Job job = captured_outputs.job_for(planned);
  DeviceMetadata metadata = describe(planned, job);
  if (auto error = check_graph(captured, metadata)) return tl::unexpected(*error);
  // It stands for the graph at the next call, whatever this batch needs of it.
  metadata.kernels = captured.kernels;

  const auto slot = take_slot();
  if (!slot) return tl::unexpected(slot.error());
  if (auto error = queue_input(**slot, planned, job, captured_outputs, stream)) {
    mark_end((*slot)->copied, stream);
    return tl::unexpected(*error);
  }
  return metadata;
}

// ---- the public side ------------------------------------------------------------------------------------------------

DeviceMetadataBuilder::DeviceMetadataBuilder(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
DeviceMetadataBuilder::DeviceMetadataBuilder(DeviceMetadataBuilder&&) noexcept = default;
DeviceMetadataBuilder& DeviceMetadataBuilder::operator=(DeviceMetadataBuilder&&) noexcept = default;
DeviceMetadataBuilder::~DeviceMetadataBuilder() = default;

tl::expected<DeviceMetadataBuilder, Error> DeviceMetadataBuilder::create(const Capacity& capacity,
                                                                         const Tiling& tiling) noexcept {
  if (auto error = check_capacity(capacity)) return tl::unexpected(*error);
  if (auto error = check_tiling(tiling)) return tl::unexpected(*error);
  std::unique_ptr<State> state(new (std::nothrow) State);
  if (state == nullptr) return tl::unexpected(Error{Error::out_of_memory, -1, sizeof(State), 0});
  if (auto error = state->allocate(capacity, tiling)) return tl::unexpected(*error);
  return DeviceMetadataBuilder(std::move(state));
}

tl::expected<DeviceMetadata, Error> DeviceMetadataBuilder::build(const Batch& batch, const DeviceLengths& lengths,
                                                                 hipStream_t stream) noexcept {
  const auto planned = plan_within(state_->capacity, batch, lengths);
  if (!planned) return tl::unexpected(planned.error());
  const auto is_captured = is_being_captured(stream);
  if (!is_captured) return tl::unexpected(is_captured.error());
  if (!*is_captured) return state_->build(*planned, stream);
  if (!state_->capacity.captures) return tl::unexpected(no_captures);
  return state_->capture(*planned, stream);
}

tl::expected<DeviceMetadata, Error> DeviceMetadataBuilder::restage(const DeviceMetadata& captured, const Batch& batch,
                                                                   const DeviceLengths& lengths,
                                                                   hipStream_t stream) noexcept {
  const auto planned = plan_within(state_->capacity, batch, lengths);
  if (!planned) return tl::unexpected(planned.error());
  if (!state_->capacity.captures) return tl::unexpected(no_captures);
  // A copy that became part of a graph would read the slot at each launch, whatever is in it by then.
  const auto is_captured = is_being_captured(stream);
  if (!is_captured) return tl::unexpected(is_captured.error());
  if (*is_captured) return tl::unexpected(*check(hipErrorStreamCaptureUnsupported, "hipStreamIsCapturing"));
  return state_->restage(captured, *planned, stream);
}

const Capacity& DeviceMetadataBuilder::capacity() const noexcept { return state_->capacity; }

}  // namespace attn::device
