#pragma once

#include "attn/device/job.hpp"

#include <hip/hip_runtime.h>

#include <cstdint>

/// Cumulative sums of rows of any length by blocks of any multiple of 16 threads, for any width of a wavefront. For
/// kernels only.
///
/// What is summed is a class without state, `Columns`:
///   using Sum;                                                 int32_t or int64_t, holds the sum of a row
///   static int64_t num_rows(job), num_columns(job);
///   static const Segments& segments(job);                      how a row is cut
///   static int32_t load(job, row, column);                     the summand, >= 0
///   static void store(job, row, column, summand, Sum before);  `before`: the sum of the columns in front
///   static void finish(job, row, Sum total);                   called once a row, by one thread
///   static int32_t* longest(job, row);                         is raised to the largest summand; null: nobody asks
namespace attn::device {

/// Summands whose sum and maximum one thread takes on its own.
inline constexpr std::int32_t items_per_group = 16;

/// Threads that reduce the tile of a block: one a group.
[[nodiscard]] constexpr std::int32_t groups_of(std::int32_t num_threads) {
  return num_threads * items_per_thread / items_per_group;
}

/// Where an item stands in shared memory. One place in 17 stays empty, so that threads which read with a stride of 16
/// or 4 do not all hit one bank.
__host__ __device__ constexpr std::int32_t place_of(std::int32_t item) { return item + item / items_per_group; }

/// A block's memory for a scan, as much as its threads need: dynamic shared memory.
template <class Sum>
struct ScanMemory {
  Sum* before;  ///< of each item, the sum of those in front of it in the tile's segment
  Sum* group_sums;
  std::int32_t* items;
  std::int32_t* group_maxima;

  __device__ explicit ScanMemory(std::int64_t* shared) {
    const auto num_threads = static_cast<std::int32_t>(blockDim.x);
    before = reinterpret_cast<Sum*>(shared);
    group_sums = before + place_of(num_threads * items_per_thread);
    items = reinterpret_cast<std::int32_t*>(group_sums + groups_of(num_threads));
    group_maxima = items + place_of(num_threads * items_per_thread);
  }
  [[nodiscard]] static std::uint32_t bytes(std::uint32_t num_threads) {
    const auto threads = static_cast<std::int32_t>(num_threads);
    const auto entries = static_cast<std::size_t>(place_of(threads * items_per_thread) + groups_of(threads));
    return static_cast<std::uint32_t>(entries * (sizeof(Sum) + sizeof(std::int32_t)));
  }
};

/// A block's memory for the sum of a segment.
struct SumMemory {
  std::int64_t* threads;
  std::int64_t* groups;

  __device__ explicit SumMemory(std::int64_t* shared) : threads(shared), groups(shared + blockDim.x) {}
  [[nodiscard]] static std::uint32_t bytes(std::uint32_t num_threads) {
    return static_cast<std::uint32_t>((num_threads + num_threads / items_per_group) * sizeof(std::int64_t));
  }
};

/// The row and the columns [begin, end) that a block works on.
struct Unit {
  std::int64_t row;
  std::int64_t segment;
  std::int64_t begin;
  std::int64_t end;
};

__device__ inline Unit unit_at(std::int64_t index, const Segments& segments, std::int64_t num_columns) {
  const std::int64_t row = index / segments.count;
  const std::int64_t segment = index - row * segments.count;
  const std::int64_t begin = segment * segments.size;
  const std::int64_t end = begin + segments.size;
  return {row, segment, begin, end < num_columns ? end : num_columns};
}

/// Sum and maximum of each group of the tile in `memory.items`.
template <class Sum>
__device__ inline void reduce_groups(const ScanMemory<Sum>& memory) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto num_groups = groups_of(static_cast<std::int32_t>(blockDim.x));
  if (thread >= num_groups) return;
  Sum sum = 0;
  std::int32_t longest = 0;
  for (std::int32_t i = 0; i < items_per_group; ++i) {
    const std::int32_t item = memory.items[place_of(thread * items_per_group + i)];
    sum += item;
    longest = item > longest ? item : longest;
  }
  memory.group_sums[thread] = sum;
  memory.group_maxima[thread] = longest;
}

/// Writes `memory.before` for the thread's own items, `carry` being the sum in front of the tile. Returns the carry of
/// the next tile.
template <class Sum>
__device__ inline Sum scan_own_items(const ScanMemory<Sum>& memory, Sum carry) {
  const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) * items_per_thread;
  const std::int32_t group = first / items_per_group;
  const auto num_groups = groups_of(static_cast<std::int32_t>(blockDim.x));
  Sum before = carry;
  Sum total = carry;
  // All threads read the same word at a time, which costs no more than one of them reading it.
  for (std::int32_t i = 0; i < num_groups; ++i) {
    const Sum sum = memory.group_sums[i];
    if (i < group) before += sum;
    total += sum;
  }
  for (std::int32_t i = group * items_per_group; i < first; ++i) before += memory.items[place_of(i)];
  for (std::int32_t i = first; i < first + items_per_thread; ++i) {
    memory.before[place_of(i)] = before;
    before += memory.items[place_of(i)];
  }
  return total;
}

/// Raises `*longest` to the tile's maximum.
template <class Sum>
__device__ inline void raise_longest(const ScanMemory<Sum>& memory, std::int32_t* longest) {
  const auto num_groups = groups_of(static_cast<std::int32_t>(blockDim.x));
  std::int32_t most = 0;
  for (std::int32_t i = 0; i < num_groups; ++i) most = memory.group_maxima[i] > most ? memory.group_maxima[i] : most;
  if (most > 0) atomicMax(longest, most);
}

/// Scans the columns of one tile, no more than a block takes at a time. Returns the carry of the next one.
///
/// Loads and stores are coalesced: thread t takes columns t, t + blockDim.x, ...; in between it owns neighbours. Three
/// barriers are enough for tile after tile: behind the third only `before` is read, and that is written again only
/// behind the next tile's second.
template <class Columns>
__device__ typename Columns::Sum scan_tile(const Job& job, const ScanMemory<typename Columns::Sum>& memory,
                                           const Unit& tile, typename Columns::Sum carry) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto num_threads = static_cast<std::int32_t>(blockDim.x);
  std::int32_t own[items_per_thread];
  for (std::int32_t i = 0; i < items_per_thread; ++i) {
    const std::int32_t item = i * num_threads + thread;
    own[i] = tile.begin + item < tile.end ? Columns::load(job, tile.row, tile.begin + item) : 0;
    memory.items[place_of(item)] = own[i];
  }
  __syncthreads();
  reduce_groups(memory);
  __syncthreads();
  const typename Columns::Sum next = scan_own_items(memory, carry);
  // The first thread had the least to add up.
  if (thread == 0 && Columns::longest(job, tile.row) != nullptr) raise_longest(memory, Columns::longest(job, tile.row));
  __syncthreads();
  for (std::int32_t i = 0; i < items_per_thread; ++i) {
    const std::int32_t item = i * num_threads + thread;
    if (tile.begin + item < tile.end)
      Columns::store(job, tile.row, tile.begin + item, own[i], memory.before[place_of(item)]);
  }
  return next;
}

/// Scans every row. Where rows have several segments, `sum_segments` has run before.
template <class Columns>
__device__ void scan_rows(const Job& job, const ScanMemory<typename Columns::Sum>& memory) {
  using Sum = typename Columns::Sum;
  const std::int64_t num_columns = Columns::num_columns(job);
  const Segments segments = Columns::segments(job);
  const std::int64_t num_units = Columns::num_rows(job) * segments.count;
  const std::int64_t block_items = static_cast<std::int64_t>(blockDim.x) * items_per_thread;
  const std::int64_t tile_items = block_items < job.tile_items ? block_items : job.tile_items;
  for (std::int64_t index = blockIdx.x; index < num_units; index += gridDim.x) {
    const Unit unit = unit_at(index, segments, num_columns);
    Sum carry = 0;
    for (std::int64_t i = index - unit.segment; i < index; ++i) carry += static_cast<Sum>(job.segment_sums[i]);
    for (std::int64_t begin = unit.begin; begin < unit.end; begin += tile_items) {
      const std::int64_t end = begin + tile_items < unit.end ? begin + tile_items : unit.end;
      carry = scan_tile<Columns>(job, memory, Unit{unit.row, unit.segment, begin, end}, carry);
    }
    if (threadIdx.x == 0 && unit.end == num_columns) Columns::finish(job, unit.row, carry);
  }
}

/// Writes the sum of every segment of every row to `job.segment_sums`, row by row.
template <class Columns>
__device__ void sum_segments(const Job& job, const SumMemory& memory) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto num_groups = static_cast<std::int32_t>(blockDim.x) / items_per_group;
  const std::int64_t num_columns = Columns::num_columns(job);
  const Segments segments = Columns::segments(job);
  const std::int64_t num_units = Columns::num_rows(job) * segments.count;
  for (std::int64_t index = blockIdx.x; index < num_units; index += gridDim.x) {
    const Unit unit = unit_at(index, segments, num_columns);
    std::int64_t sum = 0;
    for (std::int64_t column = unit.begin + thread; column < unit.end; column += blockDim.x)
      sum += Columns::load(job, unit.row, column);
    memory.threads[thread] = sum;
    __syncthreads();
    if (thread < num_groups) {
      std::int64_t group = 0;
      for (std::int32_t i = 0; i < items_per_group; ++i) group += memory.threads[thread * items_per_group + i];
      memory.groups[thread] = group;
    }
    __syncthreads();
    if (thread == 0) {
      std::int64_t total = 0;
      for (std::int32_t i = 0; i < num_groups; ++i) total += memory.groups[i];
      job.segment_sums[index] = total;
    }
  }
}

}  // namespace attn::device
