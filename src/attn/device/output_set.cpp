#include "attn/device/output_set.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

namespace attn::device {
namespace {

template <class T>
std::span<const T> span_of(T* data, std::int64_t count) noexcept {
  return {data, static_cast<std::size_t>(count)};
}

/// Segments of any row of at most `num_columns`.
std::int64_t most_segments(std::int64_t num_columns, const Tiling& tiling) noexcept {
  return std::min<std::int64_t>(ceil_div(num_columns, tiling.tile_items), tiling.max_segments);
}

/// Segments of all rows of any scan within a capacity.
std::int64_t count_segments(const Capacity& capacity, const Tiling& tiling) noexcept {
  const std::int64_t of_extends = most_segments(capacity.max_reqs, tiling);
  const std::int64_t of_one_row = std::max(of_extends, most_segments(capacity.max_chunks, tiling));
  if (of_extends <= 1) return of_one_row;
  // A row for each chunk: C * ceil(E / tile) <= C * E / tile + C.
  return std::max(of_one_row, capacity.max_slices / tiling.tile_items + capacity.max_chunks);
}

/// Entries of cu_seq_lens: of each row one more than slices.
std::int64_t count_cumulative(const Capacity& capacity) noexcept {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 2;
  return std::min(capacity.max_slices, most) + capacity.max_chunks;
}

LengthSource source_of(const PlannedBatch& planned) noexcept {
  if (planned.lengths.data != nullptr)
    return planned.lengths.kind == DeviceLengths::seq_lens ? LengthSource::device_exact : LengthSource::device_computed;
  if (!planned.batch.seq_lens.empty()) return LengthSource::host_exact;
  return planned.batch.seq_lens_upper_bound.empty() ? LengthSource::none : LengthSource::host_bound;
}

void fill_region(const PlannedBatch& planned, std::int32_t first_req, std::int32_t num_reqs,
                 RegionJob& region) noexcept {
  region.first_req = first_req;
  region.num_reqs = num_reqs;
  region.num_unpadded = std::clamp(planned.num_unpadded - first_req, 0, num_reqs);
}

Region describe_region(const PlannedBatch& planned, const RegionJob& job) noexcept {
  Region region = region_numbers(planned.batch, planned.num_unpadded, job.first_req, job.num_reqs);
  region.query_start_loc = span_of(job.query_start_loc, job.num_reqs + std::int64_t{1});
  return region;
}

ChunkedContext describe_context(const Job& job) noexcept {
  const std::int64_t slices = std::int64_t{job.num_chunks} * job.num_extends;
  ChunkedContext context;
  context.num_chunks = job.num_chunks;
  context.context_lens = span_of(job.context_lens, job.num_extends);
  context.chunk_starts = {span_of(job.chunk_starts, slices), job.num_extends};
  context.seq_lens = {span_of(job.slice_lens, slices), job.num_extends};
  context.cu_seq_lens = {span_of(job.cu_slice_lens, slices + job.num_chunks), job.num_extends + std::int64_t{1}};
  context.seq_tot = span_of(job.chunk_totals, job.num_chunks);
  context.max_seq_lens = span_of(job.longest_slices, job.num_chunks);
  context.token_start = span_of(job.token_start, job.num_chunks + std::int64_t{1});
  context.token_to_batch_data = span_of(job.context_owners, job.context_tokens);
  return context;
}

/// Longest window, by the host's lengths.
std::int32_t longest_window(const Batch& batch, const RegionJob& extends) noexcept {
  std::int32_t longest = 0;
  for (std::int32_t i = extends.first_req; i < extends.first_req + extends.num_reqs; ++i) {
    const std::int64_t seq_len = batch.best_seq_lens()[static_cast<std::size_t>(i)];
    const std::int64_t reach = std::int64_t{batch.query_len(i)} + *batch.config.window_left + 1;
    longest = std::max(longest, static_cast<std::int32_t>(std::min(seq_len, reach)));
  }
  return longest;
}

SlidingWindow describe_window(const Batch& batch, const Job& job) noexcept {
  SlidingWindow window;
  window.seq_starts = span_of(job.window_starts, job.num_extends);
  window.seq_lens = span_of(job.window_lens, job.num_extends);
  window.cu_seq_lens = span_of(job.cu_window_lens, job.num_extends + std::int64_t{1});
  window.token_to_batch = span_of(job.window_owners, job.window_tokens);
  window.max_seq_len = longest_window(batch, job.regions[1]);
  window.total_tokens = job.window_tokens;
  return window;
}

}  // namespace

/// Allocates one array after the other until one fails.
class OutputSet::Allocator {
 public:
  explicit Allocator(std::span<DeviceBlock> blocks) noexcept : blocks_(blocks) {}

  /// No memory is asked for no elements.
  template <class T>
  void operator()(T*& array, std::int64_t count) noexcept {
    DeviceBlock& block = blocks_[next_++];
    if (error_ || count == 0) return;
    // More than any card has: to be refused like too much of anything, not to wrap to something that fits.
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(T));
    error_ = block.allocate(std::min(count, most) * static_cast<std::int64_t>(sizeof(T)));
    array = static_cast<T*>(block.data());
  }

  [[nodiscard]] const std::optional<Error>& error() const noexcept { return error_; }

 private:
  std::span<DeviceBlock> blocks_;
  std::size_t next_ = 0;
  std::optional<Error> error_;
};

std::optional<Error> OutputSet::allocate(const Capacity& capacity, const Tiling& tiling) noexcept {
  tiling_ = tiling;
  const std::int64_t reqs = capacity.max_reqs;
  const std::int64_t chunks = capacity.max_chunks;
  Allocator allocate(blocks_);
  allocate(input_, input_bytes(reqs));
  allocate(empty_.scalars, 1);
  for (RegionJob& region : empty_.regions) allocate(region.query_start_loc, reqs + 1);
  allocate(empty_.seq_lens, reqs);
  allocate(empty_.positions, capacity.max_query_tokens);
  allocate(empty_.context_lens, reqs);
  allocate(empty_.chunk_starts, capacity.max_slices);
  allocate(empty_.slice_lens, capacity.max_slices);
  allocate(empty_.cu_slice_lens, count_cumulative(capacity));
  allocate(empty_.chunk_totals, chunks);
  allocate(empty_.longest_slices, chunks);
  allocate(empty_.token_start, chunks + 1);
  allocate(empty_.context_owners, capacity.max_context_tokens);
  allocate(empty_.window_starts, reqs);
  allocate(empty_.window_lens, reqs);
  allocate(empty_.cu_window_lens, reqs + 1);
  allocate(empty_.window_owners, capacity.max_window_tokens);
  allocate(empty_.context_begins, reqs + 1);
  allocate(empty_.segment_sums, count_segments(capacity, tiling));
  return allocate.error();
}

Job OutputSet::job_for(const PlannedBatch& planned) const noexcept {
  const Batch& batch = planned.batch;
  const Split& split = planned.plan.split;
  const ChunkPlan& chunks = planned.plan.chunks;
  const auto* offsets = reinterpret_cast<const std::int32_t*>(input_ + sizeof(Job));
  Job job = empty_;
  job.num_reqs = batch.num_reqs;
  job.num_unpadded = planned.num_unpadded;
  job.num_actual_tokens = batch.num_actual_tokens;
  job.max_seq_len = batch.max_seq_len;
  job.query_start_loc = offsets;
  job.host_seq_lens = batch.best_seq_lens().empty() ? nullptr : offsets + batch.num_reqs + 1;
  job.device_lengths = planned.lengths.data;
  job.length_source = source_of(planned);
  fill_region(planned, 0, split.num_decodes, job.regions[0]);
  fill_region(planned, split.num_decodes, split.num_extends, job.regions[1]);
  fill_region(planned, split.num_decodes + split.num_extends, split.num_prefills, job.regions[2]);
  job.num_extends = split.num_extends;
  job.num_chunks = static_cast<std::int32_t>(chunks.num_chunks);
  job.chunk_policy = chunks.policy;
  job.chunk_tokens = chunks.chunk_tokens;
  job.chunk_alignment = chunks.alignment;
  job.context_tokens = chunks.total_tokens;
  job.has_window = planned.plan.window_tokens.has_value();
  job.window_left = batch.config.window_left.value_or(0);
  job.window_tokens = planned.plan.window_tokens.value_or(0);
  job.tile_items = tiling_.tile_items;
  job.extend_segments = cut_row(job.num_extends, tiling_);
  job.chunk_segments = cut_row(job.num_chunks, tiling_);
  return job;
}

std::size_t stage_input(const PlannedBatch& planned, const Job& job, std::byte* staging) noexcept {
  static constexpr std::int32_t no_offsets[] = {0};
  const auto offsets =
      planned.batch.query_start_loc.empty() ? std::span<const std::int32_t>{no_offsets} : planned.batch.query_start_loc;
  std::byte* end = staging;
  const auto append = [&end](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(end, from, bytes);
    end += bytes;
  };
  append(&job, sizeof job);
  append(offsets.data(), offsets.size_bytes());
  // Not those of padding: nobody may read them.
  const auto seq_lens = planned.batch.best_seq_lens();
  if (!seq_lens.empty())
    append(seq_lens.data(), seq_lens.first(static_cast<std::size_t>(planned.num_unpadded)).size_bytes());
  return static_cast<std::size_t>(end - staging);
}

DeviceMetadata describe(const PlannedBatch& planned, const Job& job) noexcept {
  DeviceMetadata made;
  made.metadata.split = planned.plan.split;
  made.metadata.decode = describe_region(planned, job.regions[0]);
  made.metadata.extend = describe_region(planned, job.regions[1]);
  made.metadata.prefill = describe_region(planned, job.regions[2]);
  made.metadata.context = describe_context(job);
  if (job.has_window) made.metadata.window = describe_window(planned.batch, job);
  made.metadata.num_kv_tokens = count_kv_tokens(planned.batch, planned.num_unpadded);
  if (has_lengths(job)) {
    made.seq_lens = span_of(job.seq_lens, job.num_reqs);
    made.positions = span_of(job.positions, job.num_actual_tokens);
  }
  made.scalars = job.scalars;
  made.num_reqs = job.num_reqs;
  made.kernels = needed_kernels(job);
  return made;
}

}  // namespace attn::device
