#pragma once

#include "attn/metadata.hpp"

#include <hip/hip_runtime_api.h>
#include <tl/expected.hpp>

#include <cstdint>
#include <memory>
#include <span>

/// The metadata in device memory, made by kernels, for servers whose exact sequence lengths exist only there.
namespace attn::device {

/// No server is as many steps ahead of its device; more is a broken number, not a wish.
inline constexpr std::int32_t max_builds_in_flight = 1024;

/// What a DeviceMetadataBuilder has room for, all of it allocated when it is made.
struct Capacity {
  std::int32_t max_reqs = 0;            ///< rows of a batch, padding included
  std::int32_t max_query_tokens = 0;    ///< num_actual_tokens
  std::int32_t max_chunks = 0;          ///< passes
  std::int64_t max_slices = 0;          ///< passes times extends
  std::int64_t max_context_tokens = 0;  ///< sum of the extends' contexts
  std::int64_t max_window_tokens = 0;   ///< sum of the extends' windows
  /// Builds that can be queued and not yet begun on the device. One more, and `build` waits until the oldest of them
  /// has read its input: the only case in which it waits. At least 1.
  /// At most max_builds_in_flight.
  std::int32_t builds_in_flight = 2;
  /// Whether builds may be captured in graphs: costs the output arrays once more.
  bool captures = true;

  friend bool operator==(const Capacity&, const Capacity&) = default;
};

/// Columns of a row that a block of the largest size scans at a time.
inline constexpr std::int32_t max_tile_items = 1024;
/// Segments of a row at most: each block adds up the sums of all segments before its own.
inline constexpr std::int32_t max_row_segments = 256;

/// How the kernels cut rows of many extends, or many passes, into pieces for blocks. The metadata is the same for every
/// tiling. The defaults are the fast ones; a test takes small numbers, so that a row of a few extends is cut as one of
/// thousands is.
struct Tiling {
  std::int32_t tile_items = max_tile_items;      ///< columns that a block scans at a time at most: 1 to max_tile_items
  std::int32_t max_segments = max_row_segments;  ///< blocks that share a row at most: 1 to max_row_segments
};

/// The least capacity that `batch` fits in, by what the host knows of it. Errors: those of `make_plan`;
/// unsupported_policy, since vLLM's planner for MLA (ChunkPolicy::mla) cuts one context after the other.
[[nodiscard]] tl::expected<Capacity, Error> required_capacity(const Batch& batch) noexcept;

/// The capacity that has room for what each of the two has room for.
[[nodiscard]] Capacity max(const Capacity& a, const Capacity& b) noexcept;

/// Where the exact lengths are. Without a pointer they are the host's own: exact ones where the batch has them, else
/// the bounds, copied along.
///
/// What the device finds outside [0, bound] counts as the nearest end of it, so that no length, however broken, leads
/// out of an array that was sized by the host's: the bound is the batch's seq_len where it has exact ones, else its
/// upper bound, else max_seq_len. DeviceScalars::num_clamped counts how often that happened. Padding rows are not read.
struct DeviceLengths {
  enum Kind : std::uint8_t {
    seq_lens,             ///< [num_reqs] seq_len of each request
    num_computed_tokens,  ///< [num_reqs] tokens in the KV cache before this step: seq_len - query_len
  };
  const std::int32_t* data = nullptr;  ///< device memory, [num_reqs] without padding at least
  Kind kind = seq_lens;
  hipEvent_t ready = nullptr;  ///< the build's kernels wait for it: recorded behind the work that writes `data`
};

/// Numbers that only the device knows, in device memory.
struct DeviceScalars {
  std::int64_t num_kv_tokens;   ///< as Metadata's
  std::int32_t max_seq_len[3];  ///< of decodes, extends, prefills, as Region's
  std::int32_t min_seq_len[3];
  std::int32_t num_chunks;           ///< passes that hold a token: the first of those planned
  std::int32_t window_total_tokens;  ///< as SlidingWindow's
  std::int32_t window_max_seq_len;
  /// Requests whose length in DeviceLengths was outside [0, bound], and counted as the nearest end of it: above 0 the
  /// bounds are not bounds, and the metadata is not that of the batch.
  std::int32_t num_clamped;
};

/// The metadata of one build. Numbers are what the host knows: counts are exact; lengths, passes and totals come from
/// the bounds. Every span points into device memory, holds what the stream's work up to the build's end has written,
/// and has the planned size: surplus passes are empty, and in the token maps what lies behind the exact total is 0.
struct DeviceMetadata {
  Metadata metadata;
  std::span<const std::int32_t> seq_lens;   ///< [num_reqs] exact, 0 for padding; empty when nobody knows a length
  std::span<const std::int32_t> positions;  ///< [num_actual_tokens] of each query token in its request: context + i; 0
                                            ///< for tokens that no request owns; empty likewise
  const DeviceScalars* scalars = nullptr;   ///< device memory
  std::int32_t num_reqs = 0;
  std::uint32_t kernels = 0;  ///< which kernels were launched; for `restage`
};

/// Turns batches into metadata on the device. A build copies the host's side of the batch through pinned memory and
/// launches kernels on the caller's stream: nothing comes back, nothing waits, nothing is allocated.
///
/// Outputs are kept twice, in turn: the metadata of a build stands beside that of the next one that succeeds, until
/// another build begins. One that fails leaves the last metadata as it was. Captured builds have a third set of
/// outputs, which their replays write. Builds on different streams order themselves; what reads their outputs, and
/// replays on different streams, are the caller's to order.
///
/// A builder belongs to the device that is current when it is made, and wants it current whenever it is used. A stream
/// outlives the builder that was given it, and a graph is not launched after its builder has ended. While a stream is
/// being captured nothing else of the builder is used: HIP counts a look at an event as a call that ends the capture.
/// A graph holds one build of a builder. Not for use from two threads at once.
class DeviceMetadataBuilder {
 public:
  /// Allocates everything. Errors: invalid_capacity, capacity_exceeded, which name the number of `capacity` or
  /// `tiling`; device or out_of_memory, with nothing left allocated.
  [[nodiscard]] static tl::expected<DeviceMetadataBuilder, Error> create(const Capacity& capacity,
                                                                         const Tiling& tiling = {}) noexcept;

  DeviceMetadataBuilder(DeviceMetadataBuilder&&) noexcept;
  DeviceMetadataBuilder& operator=(DeviceMetadataBuilder&&) noexcept;
  /// Waits for all work of the device if anything was ever queued, then frees. Not while a stream is being captured,
  /// which allows neither: then nothing is freed.
  ~DeviceMetadataBuilder();

  /// Queues a build on `stream`. The batch's arrays are free again when it returns; `lengths.data` is read when the
  /// stream gets there.
  ///
  /// While `stream` is being captured it only records kernels: `restage` hands over the batch before each launch of
  /// the graph, the first one too.
  ///
  /// Errors, before anything is queued: those of `make_plan`, which are `MetadataBuilder::build`'s for what the host
  /// knows of the batch; unsupported_policy; capacity_exceeded; invalid_capacity when the stream is being captured and
  /// there is no room for captures. Then: device.
  [[nodiscard]] tl::expected<DeviceMetadata, Error> build(const Batch& batch, const DeviceLengths& lengths,
                                                          hipStream_t stream) noexcept;

  /// Queues on `stream` the hand-over of a batch to the graph that holds the build `captured`, or any earlier result of
  /// this call for it; to be called before each hipGraphLaunch, on the same stream. The batch may differ in everything
  /// but num_reqs, as long as it needs no kernel that was not captured. Its metadata stands until the next call. After
  /// an error the graph is not to be launched.
  ///
  /// Errors, before anything is queued: those of `build`; graph_mismatch. Then: device.
  [[nodiscard]] tl::expected<DeviceMetadata, Error> restage(const DeviceMetadata& captured, const Batch& batch,
                                                            const DeviceLengths& lengths, hipStream_t stream) noexcept;

  [[nodiscard]] const Capacity& capacity() const noexcept;

 private:
  struct State;
  explicit DeviceMetadataBuilder(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace attn::device
