// The kernels, and the only file of the library that is compiled for a GPU.
//
// Each kernel takes any number of threads and blocks, and any job: what there is to do is in the job, and loops deal it
// out. A captured graph may launch kernels that a later job has no use for; they find nothing to do. No block waits for
// another: what a block needs of others was written by an earlier launch on the stream. Only sums and extremes of
// integers are gathered with atomics, so that no result depends on an order.

#include "attn/device/job.hpp"
#include "attn/device/scan.hpp"

#include <hip/hip_runtime.h>

#include <cstdint>
#include <limits>

namespace attn::device {
namespace {

constexpr std::int32_t decode = 0;
constexpr std::int32_t extend = 1;
constexpr std::int32_t prefill = 2;
constexpr std::int32_t num_regions = 3;

// ---- what kernels share ---------------------------------------------------------------------------------------------

__device__ std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + static_cast<std::int64_t>(threadIdx.x);
}

__device__ std::int64_t item_stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

__device__ std::int64_t clamp_to(std::int64_t value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/// The range that holds `at`: the last of `count` ascending starts that is not behind it. starts[0] <= at.
template <class T>
__device__ std::int64_t find_range(const T* starts, std::int64_t count, std::int64_t at) {
  std::int64_t low = 0;
  std::int64_t high = count;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    if (starts[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// int64_t has no atomics of its own; two's complement makes those of its unsigned twin do.
__device__ void add_to(std::int64_t* sum, std::int64_t value) {
  atomicAdd(reinterpret_cast<std::uint64_t*>(sum), static_cast<std::uint64_t>(value));
}

// ---- requests -------------------------------------------------------------------------------------------------------

/// What the host knows of the length of request i, which is not padding: no length exceeds it.
__device__ std::int32_t bound_of(const Job& job, std::int64_t i) {
  return job.host_seq_lens != nullptr ? job.host_seq_lens[i] : job.max_seq_len;
}

/// Tokens of request i, which is not padding, as the device has them: any number at all.
__device__ std::int64_t length_on_device(const Job& job, std::int64_t i, std::int32_t query_len) {
  const std::int64_t length = job.device_lengths[i];
  return job.length_source == LengthSource::device_computed ? length + query_len : length;
}

/// Tokens of request i, whose query has `query_len`. Whatever the device holds, it stays within what sizes were planned
/// from. Padding has none, and is not read.
__device__ std::int32_t length_of(const Job& job, std::int64_t i, std::int32_t query_len) {
  if (i >= job.num_unpadded) return 0;
  const std::int32_t bound = bound_of(job, i);
  if (job.device_lengths == nullptr) return bound;
  return static_cast<std::int32_t>(clamp_to(length_on_device(job, i, query_len), 0, bound));
}

/// Whether the length that the device has for request i, which is not padding, is not the one that was used.
__device__ bool is_clamped(const Job& job, std::int64_t i) {
  if (job.device_lengths == nullptr) return false;
  const std::int32_t query_len = job.query_start_loc[i + 1] - job.query_start_loc[i];
  return length_on_device(job, i, query_len) != job.seq_lens[i];
}

/// Entry i of the batch's offsets goes to the regions it is an offset of: one, or two that it divides, or more where
/// some are empty.
__device__ void rebase_offset(const Job& job, std::int64_t i) {
  const std::int32_t offset = job.query_start_loc[i];
  for (const RegionJob& region : job.regions) {
    const std::int64_t inside = i - region.first_req;
    if (inside < 0 || inside > region.num_reqs) continue;
    region.query_start_loc[inside] = offset - job.query_start_loc[region.first_req];
  }
}

/// What an extend has in the cache, and what of its sequence the window shows.
__device__ void write_extend(const Job& job, std::int64_t e, std::int32_t query_len, std::int32_t length) {
  job.context_lens[e] = context_len(query_len, length);
  if (!job.has_window) return;
  const std::int64_t reach = std::int64_t{query_len} + job.window_left + 1;
  const auto shown = static_cast<std::int32_t>(clamp_to(length, 0, reach));
  job.window_starts[e] = length - shown;
  job.window_lens[e] = shown;
}

__device__ void write_request(const Job& job, std::int64_t i) {
  const std::int32_t query_len = job.query_start_loc[i + 1] - job.query_start_loc[i];
  const std::int32_t length = length_of(job, i, query_len);
  job.seq_lens[i] = length;
  const std::int64_t e = i - job.regions[extend].first_req;
  if (e >= 0 && e < job.num_extends) write_extend(job, e, query_len, length);
}

/// The scalars before any request has been looked at; final where no request has a length.
__device__ void begin_scalars(const Job& job) {
  DeviceScalars& scalars = *job.scalars;
  scalars.num_kv_tokens = has_lengths(job) ? 0 : std::int64_t{job.num_unpadded} * job.max_seq_len;
  for (std::int32_t r = 0; r < num_regions; ++r) {
    const RegionJob& region = job.regions[r];
    scalars.max_seq_len[r] = has_lengths(job) || region.num_reqs == 0 ? 0 : job.max_seq_len;
    // A bound says nothing about the shortest sequence, nor does a region of padding.
    const bool has_shortest =
        has_lengths(job) && job.length_source != LengthSource::host_bound && region.num_unpadded > 0;
    scalars.min_seq_len[r] = has_shortest ? std::numeric_limits<std::int32_t>::max() : 0;
  }
  scalars.num_chunks = 0;
  scalars.window_total_tokens = 0;
  scalars.window_max_seq_len = 0;
  scalars.num_clamped = 0;
}

/// All that depends on one request alone, and what later kernels add to.
__global__ void __launch_bounds__(max_block_threads) prepare_requests_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  if (first_item() == 0) {
    begin_scalars(job);
    job.token_start[0] = 0;
    if (job.has_window) job.cu_window_lens[0] = 0;
  }
  for (std::int64_t i = first_item(); i <= job.num_reqs; i += item_stride()) {
    rebase_offset(job, i);
    if (i < job.num_reqs && has_lengths(job)) write_request(job, i);
  }
  for (std::int64_t c = first_item(); c < job.num_chunks; c += item_stride()) job.longest_slices[c] = 0;
}

/// Longest and shortest sequence of each region, the sum of all, and how many are not what the device has.
__global__ void __launch_bounds__(max_block_threads) reduce_lengths_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  __shared__ std::int64_t sum;
  __shared__ std::int32_t longest[num_regions];
  __shared__ std::int32_t shortest[num_regions];
  if (threadIdx.x == 0) {
    sum = 0;
    for (std::int32_t r = 0; r < num_regions; ++r) {
      longest[r] = 0;
      shortest[r] = std::numeric_limits<std::int32_t>::max();
    }
  }
  __syncthreads();
  const std::int64_t num_lengths = has_lengths(job) ? job.num_unpadded : 0;
  for (std::int64_t i = first_item(); i < num_lengths; i += item_stride()) {
    const std::int32_t length = job.seq_lens[i];
    const std::int32_t r = i < job.regions[extend].first_req    ? decode
                           : i < job.regions[prefill].first_req ? extend
                                                                : prefill;
    add_to(&sum, length);
    atomicMax(&longest[r], length);
    atomicMin(&shortest[r], length);
    // Straight to device memory: in a server that keeps its bounds there is none to count.
    if (is_clamped(job, i)) atomicAdd(&job.scalars->num_clamped, 1);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  add_to(&job.scalars->num_kv_tokens, sum);
  for (std::int32_t r = 0; r < num_regions; ++r) {
    atomicMax(&job.scalars->max_seq_len[r], longest[r]);
    atomicMin(&job.scalars->min_seq_len[r], shortest[r]);
  }
}

/// The position of each query token in its request's sequence; 0 for surplus tokens, which belong to no request.
__global__ void __launch_bounds__(max_block_threads) write_positions_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  const std::int64_t num_tokens = has_lengths(job) ? job.num_actual_tokens : 0;
  const std::int32_t num_owned = job.query_start_loc[job.num_reqs];
  for (std::int64_t token = first_item(); token < num_tokens; token += item_stride()) {
    if (token >= num_owned) {
      job.positions[token] = 0;
      continue;
    }
    const std::int64_t i = find_range(job.query_start_loc, job.num_reqs, token);
    const std::int32_t first_token = job.query_start_loc[i];
    const std::int32_t query_len = job.query_start_loc[i + 1] - first_token;
    job.positions[token] = context_len(query_len, job.seq_lens[i]) + static_cast<std::int32_t>(token - first_token);
  }
}

// ---- scans, by what is summed --------------------------------------------------------------------------------------

template <class Columns>
__global__ void __launch_bounds__(max_block_threads) sum_segments_kernel(const Job* __restrict__ at) {
  HIP_DYNAMIC_SHARED(std::int64_t, shared);
  sum_segments<Columns>(*at, SumMemory{shared});
}

template <class Columns>
__global__ void __launch_bounds__(max_block_threads) scan_rows_kernel(const Job* __restrict__ at) {
  HIP_DYNAMIC_SHARED(std::int64_t, shared);
  scan_rows<Columns>(*at, ScanMemory<typename Columns::Sum>{shared});
}

// ---- contexts end to end --------------------------------------------------------------------------------------------

/// The contexts laid end to end, each from a multiple of the alignment on, in one row. Summed in units of the
/// alignment: a context that is rounded up may leave int32.
struct ContextColumns {
  using Sum = std::int64_t;
  static __device__ std::int64_t num_rows(const Job& job) { return has_packed(job) ? 1 : 0; }
  static __device__ std::int64_t num_columns(const Job& job) { return job.num_extends; }
  static __device__ const Segments& segments(const Job& job) { return job.extend_segments; }
  static __device__ std::int32_t load(const Job& job, std::int64_t, std::int64_t e) {
    return static_cast<std::int32_t>(ceil_div(job.context_lens[e], job.chunk_alignment));
  }
  static __device__ void store(const Job& job, std::int64_t, std::int64_t e, std::int32_t, Sum before) {
    job.context_begins[e] = before * job.chunk_alignment;
  }
  static __device__ void finish(const Job& job, std::int64_t, Sum sum) {
    const std::int64_t total = sum * job.chunk_alignment;
    job.context_begins[job.num_extends] = total;
    job.scalars->num_chunks = static_cast<std::int32_t>(ceil_div(total, job.chunk_tokens));
    if (has_seamless(job)) job.token_start[job.num_chunks] = total;
  }
  static __device__ std::int32_t* longest(const Job&, std::int64_t) { return nullptr; }
};

/// What a pass takes of a context.
struct Slice {
  std::int32_t start;
  std::int32_t len;
};

/// Of extend e the places [low, high) of all contexts laid end to end.
__device__ Slice cut_packed(const Job& job, std::int64_t low, std::int64_t high, std::int64_t e) {
  const std::int64_t begin = job.context_begins[e];
  const std::int64_t context = job.context_lens[e];
  const std::int64_t from = clamp_to(low - begin, 0, context);
  const std::int64_t to = clamp_to(high - begin, 0, context);
  return {static_cast<std::int32_t>(from), static_cast<std::int32_t>(to - from)};
}

// ---- chunks without gaps --------------------------------------------------------------------------------------------

/// The tokens [low, high) of the contexts laid end to end. A surplus pass is empty, and lies behind the last token.
struct Pass {
  std::int64_t low;
  std::int64_t high;
};

__device__ Pass pass_at(const Job& job, std::int64_t chunk) {
  const std::int64_t total = job.context_begins[job.num_extends];
  return {clamp_to(chunk * job.chunk_tokens, 0, total), clamp_to((chunk + 1) * job.chunk_tokens, 0, total)};
}

__device__ void write_seamless_slice(const Job& job, std::int64_t chunk, const Pass& pass, std::int64_t e) {
  const Slice slice = cut_packed(job, pass.low, pass.high, e);
  const std::int64_t before = job.context_begins[e] - pass.low;
  const std::int64_t row = chunk * job.num_extends;
  job.chunk_starts[row + e] = slice.start;
  job.slice_lens[row + e] = slice.len;
  job.cu_slice_lens[row + chunk + e] = static_cast<std::int32_t>(clamp_to(before, 0, pass.high - pass.low));
  // Few slices hold a token, one for each context and one more for each pass: not worth gathering in the block first.
  if (slice.len > 0) atomicMax(&job.longest_slices[chunk], slice.len);
}

__device__ void finish_seamless_pass(const Job& job, std::int64_t chunk, const Pass& pass) {
  const auto total = static_cast<std::int32_t>(pass.high - pass.low);
  job.cu_slice_lens[(chunk + 1) * job.num_extends + chunk] = total;
  job.chunk_totals[chunk] = total;
  job.token_start[chunk] = pass.low;
}

/// The slices of each pass follow from where contexts begin.
__global__ void __launch_bounds__(max_block_threads) slice_seamless_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  const Segments segments = job.extend_segments;
  const std::int64_t num_units = has_seamless(job) ? job.num_chunks * segments.count : 0;
  for (std::int64_t index = blockIdx.x; index < num_units; index += gridDim.x) {
    const Unit unit = unit_at(index, segments, job.num_extends);
    const Pass pass = pass_at(job, unit.row);
    for (std::int64_t e = unit.begin + threadIdx.x; e < unit.end; e += blockDim.x)
      write_seamless_slice(job, unit.row, pass, e);
    if (threadIdx.x == 0 && unit.segment == 0) finish_seamless_pass(job, unit.row, pass);
  }
}

// ---- chunks row by row ----------------------------------------------------------------------------------------------

/// The slices of a pass, one row a pass: equal shares, or packed contexts with gaps between them.
struct SliceColumns {
  using Sum = std::int32_t;
  static __device__ std::int64_t num_rows(const Job& job) { return has_rows(job) ? job.num_chunks : 0; }
  static __device__ std::int64_t num_columns(const Job& job) { return job.num_extends; }
  static __device__ const Segments& segments(const Job& job) { return job.extend_segments; }
  static __device__ Slice cut(const Job& job, std::int64_t chunk, std::int64_t e) {
    const std::int64_t low = chunk * job.chunk_tokens;
    if (has_packed(job)) return cut_packed(job, low, low + job.chunk_tokens, e);
    const std::int64_t len = clamp_to(job.context_lens[e] - low, 0, job.chunk_tokens);
    return {static_cast<std::int32_t>(low), static_cast<std::int32_t>(len)};
  }
  static __device__ std::int32_t load(const Job& job, std::int64_t chunk, std::int64_t e) {
    return cut(job, chunk, e).len;
  }
  static __device__ void store(const Job& job, std::int64_t chunk, std::int64_t e, std::int32_t len, Sum before) {
    const std::int64_t row = chunk * job.num_extends;
    job.chunk_starts[row + e] = cut(job, chunk, e).start;
    job.slice_lens[row + e] = len;
    job.cu_slice_lens[row + chunk + e] = before;
  }
  static __device__ void finish(const Job& job, std::int64_t chunk, Sum total) {
    job.cu_slice_lens[(chunk + 1) * job.num_extends + chunk] = total;
    job.chunk_totals[chunk] = total;
  }
  static __device__ std::int32_t* longest(const Job& job, std::int64_t chunk) { return &job.longest_slices[chunk]; }
};

/// The passes' totals, in one row.
struct ChunkColumns {
  using Sum = std::int64_t;
  static __device__ std::int64_t num_rows(const Job& job) { return has_rows(job) ? 1 : 0; }
  static __device__ std::int64_t num_columns(const Job& job) { return job.num_chunks; }
  static __device__ const Segments& segments(const Job& job) { return job.chunk_segments; }
  static __device__ std::int32_t load(const Job& job, std::int64_t, std::int64_t chunk) {
    return job.chunk_totals[chunk];
  }
  static __device__ void store(const Job& job, std::int64_t, std::int64_t chunk, std::int32_t total, Sum before) {
    job.token_start[chunk] = before;
    // Passes that hold a token come first: the last of them knows how many they are.
    const bool is_last = chunk + 1 == job.num_chunks || job.chunk_totals[chunk + 1] == 0;
    if (total > 0 && is_last) job.scalars->num_chunks = static_cast<std::int32_t>(chunk + 1);
  }
  static __device__ void finish(const Job& job, std::int64_t, Sum total) { job.token_start[job.num_chunks] = total; }
  static __device__ std::int32_t* longest(const Job&, std::int64_t) { return nullptr; }
};

// ---- owners of context tokens ---------------------------------------------------------------------------------------

/// The extend of each gathered token; behind the last one, zeros.
__global__ void __launch_bounds__(max_block_threads) map_contexts_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  const std::int64_t num_tokens = job.token_start[job.num_chunks];
  for (std::int64_t token = first_item(); token < job.context_tokens; token += item_stride()) {
    std::int64_t owner = 0;
    if (token < num_tokens) {
      const std::int64_t chunk = find_range(job.token_start, job.num_chunks, token);
      const std::int32_t* cumulative = job.cu_slice_lens + chunk * job.num_extends + chunk;
      owner = find_range(cumulative, job.num_extends, token - job.token_start[chunk]);
    }
    job.context_owners[token] = static_cast<std::int32_t>(owner);
  }
}

// ---- windows --------------------------------------------------------------------------------------------------------

/// The windows' lengths, in one row.
struct WindowColumns {
  using Sum = std::int32_t;
  static __device__ std::int64_t num_rows(const Job& job) { return job.has_window ? 1 : 0; }
  static __device__ std::int64_t num_columns(const Job& job) { return job.num_extends; }
  static __device__ const Segments& segments(const Job& job) { return job.extend_segments; }
  static __device__ std::int32_t load(const Job& job, std::int64_t, std::int64_t e) { return job.window_lens[e]; }
  static __device__ void store(const Job& job, std::int64_t, std::int64_t e, std::int32_t, Sum before) {
    job.cu_window_lens[e] = before;
  }
  static __device__ void finish(const Job& job, std::int64_t, Sum total) {
    job.cu_window_lens[job.num_extends] = total;
    job.scalars->window_total_tokens = total;
  }
  static __device__ std::int32_t* longest(const Job& job, std::int64_t) { return &job.scalars->window_max_seq_len; }
};

/// The extend of each key that a window shows; behind the last one, zeros.
__global__ void __launch_bounds__(max_block_threads) map_windows_kernel(const Job* __restrict__ at) {
  const Job& job = *at;
  const std::int32_t num_tokens = job.has_window ? job.cu_window_lens[job.num_extends] : 0;
  for (std::int64_t token = first_item(); token < job.window_tokens; token += item_stride()) {
    const std::int64_t owner = token < num_tokens ? find_range(job.cu_window_lens, job.num_extends, token) : 0;
    job.window_owners[token] = static_cast<std::int32_t>(owner);
  }
}

// ---- launches -------------------------------------------------------------------------------------------------------

/// Blocks of a launch at most: about as many as a large card runs at a time; more would only queue.
constexpr std::int64_t max_blocks = 1024;

/// Launches one kernel after the other until one fails.
class Launcher {
 public:
  Launcher(std::uint32_t kernels, std::int32_t warp_size) noexcept : kernels_(kernels), warp_size_(warp_size) {}

  /// Whether `kernel` is to be launched; then with one thread an item.
  bool wants(Kernel kernel, std::int64_t items) noexcept {
    set_threads(items);
    set_blocks(ceil_div(items, block_.x));
    return is_wanted(kernel);
  }
  /// The same for a kernel that works on rows; then with one block a segment.
  bool wants_rows(Kernel kernel, std::int64_t num_rows, std::int64_t num_columns, const Segments& segments) noexcept {
    set_threads(ceil_div(num_columns, items_per_thread));
    set_blocks(num_rows * segments.count);
    return is_wanted(kernel);
  }
  /// To be called right behind each launch.
  void check() noexcept { error_ = hipGetLastError(); }

  [[nodiscard]] dim3 grid() const noexcept { return grid_; }
  [[nodiscard]] dim3 block() const noexcept { return block_; }
  /// Shared memory that a block of this size needs for its sums, or its scan.
  [[nodiscard]] std::uint32_t sum_bytes() const noexcept { return SumMemory::bytes(block_.x); }
  template <class Columns>
  [[nodiscard]] std::uint32_t scan_bytes() const noexcept {
    return ScanMemory<typename Columns::Sum>::bytes(block_.x);
  }
  [[nodiscard]] hipError_t error() const noexcept { return error_; }

 private:
  [[nodiscard]] bool is_wanted(Kernel kernel) const noexcept {
    return error_ == hipSuccess && (kernels_ & kernel) != 0;
  }
  /// Whole wavefronts, but none without work.
  void set_threads(std::int64_t wanted) noexcept {
    const std::int64_t warps = wanted > 0 ? ceil_div(wanted, warp_size_) : 1;
    const std::int64_t threads = warps * warp_size_;
    block_ = dim3(static_cast<std::uint32_t>(threads < max_block_threads ? threads : max_block_threads));
  }
  void set_blocks(std::int64_t wanted) noexcept {
    const std::int64_t blocks = wanted < max_blocks ? wanted : max_blocks;
    grid_ = dim3(static_cast<std::uint32_t>(blocks > 0 ? blocks : 1));
  }

  std::uint32_t kernels_;
  std::int32_t warp_size_;
  dim3 grid_{};
  dim3 block_{};
  hipError_t error_ = hipSuccess;
};

void launch_request_kernels(Launcher& next, const Job& job, const Job* at, hipStream_t stream) noexcept {
  const std::int64_t entries = job.num_reqs + std::int64_t{1};
  if (next.wants(prepare_requests, entries > job.num_chunks ? entries : job.num_chunks)) {
    hipLaunchKernelGGL(prepare_requests_kernel, next.grid(), next.block(), 0, stream, at);
    next.check();
  }
  if (next.wants(reduce_lengths, job.num_unpadded)) {
    hipLaunchKernelGGL(reduce_lengths_kernel, next.grid(), next.block(), 0, stream, at);
    next.check();
  }
  if (next.wants(write_positions, job.num_actual_tokens)) {
    hipLaunchKernelGGL(write_positions_kernel, next.grid(), next.block(), 0, stream, at);
    next.check();
  }
}

void launch_packed_kernels(Launcher& next, const Job& job, const Job* at, hipStream_t stream) noexcept {
  if (next.wants_rows(sum_context_segments, 1, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(sum_segments_kernel<ContextColumns>, next.grid(), next.block(), next.sum_bytes(), stream, at);
    next.check();
  }
  if (next.wants_rows(scan_contexts, 1, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(scan_rows_kernel<ContextColumns>, next.grid(), next.block(), next.scan_bytes<ContextColumns>(),
                       stream, at);
    next.check();
  }
  if (next.wants_rows(slice_seamless, job.num_chunks, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(slice_seamless_kernel, next.grid(), next.block(), 0, stream, at);
    next.check();
  }
}

void launch_row_kernels(Launcher& next, const Job& job, const Job* at, hipStream_t stream) noexcept {
  if (next.wants_rows(sum_slice_segments, job.num_chunks, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(sum_segments_kernel<SliceColumns>, next.grid(), next.block(), next.sum_bytes(), stream, at);
    next.check();
  }
  if (next.wants_rows(scan_slices, job.num_chunks, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(scan_rows_kernel<SliceColumns>, next.grid(), next.block(), next.scan_bytes<SliceColumns>(),
                       stream, at);
    next.check();
  }
  if (next.wants_rows(sum_chunk_segments, 1, job.num_chunks, job.chunk_segments)) {
    hipLaunchKernelGGL(sum_segments_kernel<ChunkColumns>, next.grid(), next.block(), next.sum_bytes(), stream, at);
    next.check();
  }
  if (next.wants_rows(scan_chunks, 1, job.num_chunks, job.chunk_segments)) {
    hipLaunchKernelGGL(scan_rows_kernel<ChunkColumns>, next.grid(), next.block(), next.scan_bytes<ChunkColumns>(),
                       stream, at);
    next.check();
  }
}

void launch_window_kernels(Launcher& next, const Job& job, const Job* at, hipStream_t stream) noexcept {
  if (next.wants_rows(sum_window_segments, 1, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(sum_segments_kernel<WindowColumns>, next.grid(), next.block(), next.sum_bytes(), stream, at);
    next.check();
  }
  if (next.wants_rows(scan_windows, 1, job.num_extends, job.extend_segments)) {
    hipLaunchKernelGGL(scan_rows_kernel<WindowColumns>, next.grid(), next.block(), next.scan_bytes<WindowColumns>(),
                       stream, at);
    next.check();
  }
  if (next.wants(map_windows, job.window_tokens)) {
    hipLaunchKernelGGL(map_windows_kernel, next.grid(), next.block(), 0, stream, at);
    next.check();
  }
}

std::uint32_t bit_if(bool needed, Kernel kernel) noexcept { return needed ? kernel : 0u; }

}  // namespace

std::uint32_t needed_kernels(const Job& job) noexcept {
  const bool rows = has_rows(job);
  const bool packed = has_packed(job);
  const bool windows = job.has_window && job.num_extends > 0;
  const bool long_rows = job.extend_segments.count > 1;
  return prepare_requests | bit_if(has_lengths(job) && job.num_unpadded > 0, reduce_lengths) |
         bit_if(has_lengths(job) && job.num_actual_tokens > 0, write_positions) |
         bit_if(packed && long_rows, sum_context_segments) | bit_if(packed, scan_contexts) |
         bit_if(has_seamless(job), slice_seamless) | bit_if(rows && long_rows, sum_slice_segments) |
         bit_if(rows, scan_slices) | bit_if(rows && job.chunk_segments.count > 1, sum_chunk_segments) |
         bit_if(rows, scan_chunks) | bit_if(job.num_chunks > 0, map_contexts) |
         bit_if(windows && long_rows, sum_window_segments) | bit_if(windows, scan_windows) |
         bit_if(windows && job.window_tokens > 0, map_windows);
}

hipError_t launch_kernels(const Job& job, const Job* on_device, std::int32_t warp_size, hipStream_t stream) noexcept {
  Launcher next(needed_kernels(job), warp_size);
  // What somebody else left behind is not the first launch's error.
  (void)hipGetLastError();
  launch_request_kernels(next, job, on_device, stream);
  launch_packed_kernels(next, job, on_device, stream);
  launch_row_kernels(next, job, on_device, stream);
  if (next.wants(map_contexts, job.context_tokens)) {
    hipLaunchKernelGGL(map_contexts_kernel, next.grid(), next.block(), 0, stream, on_device);
    next.check();
  }
  launch_window_kernels(next, job, on_device, stream);
  return next.error();
}

}  // namespace attn::device
