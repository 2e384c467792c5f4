#pragma once

#include "attn/batch.hpp"
#include "attn/checked.hpp"
#include "attn/device/device_metadata.hpp"

#include <cstdint>
#include <type_traits>

namespace attn::device {

/// How many tokens a request's sequence has, and who says so.
enum class LengthSource : std::uint8_t {
  none,            ///< nobody: decodes only
  host_exact,      ///< host_seq_lens
  host_bound,      ///< host_seq_lens, none of which an exact length exceeds
  device_exact,    ///< device_lengths
  device_computed  ///< device_lengths + query_len
};

/// How a row is dealt to blocks: in `count` segments of `size` columns, the last one shorter. It depends on the row and
/// the builder's tiling, not on the launch, so that a captured graph scans a longer row as well.
struct Segments {
  std::int64_t count;
  std::int64_t size;
};

[[nodiscard]] constexpr Segments cut_row(std::int64_t num_columns, const Tiling& tiling) noexcept {
  const std::int64_t tiles = ceil_div(num_columns, tiling.tile_items);
  const std::int64_t tiles_per_segment = tiles > tiling.max_segments ? ceil_div(tiles, tiling.max_segments) : 1;
  const std::int64_t size = tiles_per_segment * tiling.tile_items;
  return {ceil_div(num_columns, size), size};
}

/// The requests [first_req, first_req + num_reqs) of one class.
struct RegionJob {
  std::int32_t first_req;
  std::int32_t num_reqs;
  std::int32_t num_unpadded;      ///< of num_reqs, those in front of the batch's padding
  std::int32_t* query_start_loc;  ///< out [num_reqs + 1]
};

/// What the kernels read instead of arguments: every number and every pointer of a build. A captured graph holds only
/// its address, so that the next batch needs only another job there. C = num_chunks, E = num_extends.
struct Job {
  // The batch.
  std::int32_t num_reqs;
  std::int32_t num_unpadded;
  std::int32_t num_actual_tokens;
  std::int32_t max_seq_len;             ///< the batch's: bound where there is no host_seq_lens
  const std::int32_t* query_start_loc;  ///< [num_reqs + 1]
  const std::int32_t* host_seq_lens;    ///< [num_unpadded] what the host knows best, or null
  const std::int32_t* device_lengths;   ///< [num_unpadded] the caller's
  LengthSource length_source;
  bool has_window;
  ChunkPolicy chunk_policy;
  RegionJob regions[3];  ///< decode, extend, prefill

  // The plan, from the host's lengths.
  std::int32_t num_extends;
  std::int32_t num_chunks;
  std::int64_t chunk_tokens;  ///< as ChunkPlan's
  std::int64_t chunk_alignment;
  std::int64_t context_tokens;  ///< as ChunkPlan's total_tokens
  std::int32_t window_left;
  std::int32_t window_tokens;
  std::int32_t tile_items;   ///< Tiling's
  Segments extend_segments;  ///< of a row with a column for each extend
  Segments chunk_segments;   ///< of a row with a column for each chunk

  // Output, all of it device memory.
  DeviceScalars* scalars;
  std::int32_t* seq_lens;   ///< [num_reqs]
  std::int32_t* positions;  ///< [num_actual_tokens]
  std::int32_t* context_lens;
  std::int32_t* chunk_starts;
  std::int32_t* slice_lens;
  std::int32_t* cu_slice_lens;
  std::int32_t* chunk_totals;  ///< [C] ChunkedContext::seq_tot
  std::int32_t* longest_slices;
  std::int64_t* token_start;
  std::int32_t* context_owners;  ///< [context_tokens] ChunkedContext::token_to_batch_data
  std::int32_t* window_starts;
  std::int32_t* window_lens;
  std::int32_t* cu_window_lens;
  std::int32_t* window_owners;  ///< [window_tokens]

  // Between kernels.
  /// [E + 1] where each context begins when all are laid end to end, each from a multiple of chunk_alignment on
  /// (packed)
  std::int64_t* context_begins;
  std::int64_t* segment_sums;  ///< of each segment of each row of the scan that runs
};
static_assert(std::is_trivially_copyable_v<Job>);

/// Sequence lengths, and what follows from them alone, are known.
[[nodiscard]] constexpr bool has_lengths(const Job& job) noexcept { return job.length_source != LengthSource::none; }

/// There are passes to plan, and contexts are laid end to end for it.
[[nodiscard]] constexpr bool has_packed(const Job& job) noexcept {
  return job.num_chunks > 0 && job.chunk_policy == ChunkPolicy::packed;
}
/// There are no gaps between the contexts: each slice, and what comes before it in its pass, follows from where
/// contexts begin.
[[nodiscard]] constexpr bool has_seamless(const Job& job) noexcept {
  return has_packed(job) && job.chunk_alignment == 1;
}
/// Each slice is worked out on its own, and the slices of a pass are summed.
[[nodiscard]] constexpr bool has_rows(const Job& job) noexcept { return job.num_chunks > 0 && !has_seamless(job); }

// ---- scans ----------------------------------------------------------------------------------------------------------

/// Threads of a block at most. Four wavefronts of 64 are enough to hide what these kernels wait for.
inline constexpr std::int32_t max_block_threads = 256;
/// Neighbours that one thread of a scan takes, so that the part that threads do together is a quarter as long.
inline constexpr std::int32_t items_per_thread = 4;
static_assert(max_tile_items == max_block_threads * items_per_thread);

// ---- kernels --------------------------------------------------------------------------------------------------------

/// The kernels of a build in the order of their launch, as bits of DeviceMetadata::kernels.
enum Kernel : std::uint32_t {
  prepare_requests = 1u << 0,
  reduce_lengths = 1u << 1,
  write_positions = 1u << 2,
  sum_context_segments = 1u << 3,  ///< packed, of more extends than one block scans
  scan_contexts = 1u << 4,         ///< packed
  slice_seamless = 1u << 5,        ///< packed with an alignment of 1
  sum_slice_segments = 1u << 6,    ///< all else, of more extends than one block scans
  scan_slices = 1u << 7,           ///< all else
  sum_chunk_segments = 1u << 8,    ///< all else, of more chunks than one block scans
  scan_chunks = 1u << 9,           ///< all else
  map_contexts = 1u << 10,
  sum_window_segments = 1u << 11,
  scan_windows = 1u << 12,
  map_windows = 1u << 13,
};

/// The kernels that a job needs, as bits.
[[nodiscard]] std::uint32_t needed_kernels(const Job& job) noexcept;

/// Queues the kernels that a job needs; `on_device` is where they will find it. The first error, if any.
[[nodiscard]] hipError_t launch_kernels(const Job& job, const Job* on_device, std::int32_t warp_size,
                                        hipStream_t stream) noexcept;

}  // namespace attn::device
