#include "properties/device/run.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace properties::device {

void require_hip(hipError_t error, const char* call) {
  if (error == hipSuccess) return;
  throw HipFailure(std::string{call} + " failed with " + hipGetErrorName(error));
}

std::optional<std::string> no_device() {
  int count = 0;
  const hipError_t error = hipGetDeviceCount(&count);
  static_cast<void>(hipGetLastError());
  if (error != hipSuccess) return std::string{"no device: "} + hipGetErrorName(error) + ", " + hipGetErrorString(error);
  if (count == 0) return "no device: the runtime counts none";
  return std::nullopt;
}

Stream::Stream() { require_hip(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking), "hipStreamCreateWithFlags"); }

Stream::~Stream() {
  static_cast<void>(hipStreamSynchronize(stream_));
  static_cast<void>(hipStreamDestroy(stream_));
}

void Stream::wait() const { require_hip(hipStreamSynchronize(stream_), "hipStreamSynchronize"); }

const char* name(LengthKind kind) {
  switch (kind) {
    case LengthKind::host:
      return "lengths of the host";
    case LengthKind::exact:
      return "exact lengths of the device";
    case LengthKind::computed:
      return "computed tokens of the device";
  }
  return "";
}

namespace {

bool is_decode_only(const attn::Batch& batch) { return batch.max_query_len <= batch.config.decode_threshold; }

/// Where request i's own bound is: the array's, else the scalar's.
std::int32_t bound_of(const attn::Batch& host, std::size_t i) {
  return host.seq_lens_upper_bound.empty() ? host.max_seq_len : host.seq_lens_upper_bound[i];
}

/// Whether the host's side can be read row by row: the arrays have the counts they claim.
bool has_rows(const attn::Batch& batch) {
  const auto count = static_cast<std::size_t>(std::max(batch.num_reqs, 0));
  return batch.num_reqs > 0 && batch.query_start_loc.size() == count + 1 && batch.seq_lens.size() == count &&
         (batch.seq_lens_upper_bound.empty() || batch.seq_lens_upper_bound.size() == count);
}

/// The tokens computed before this step, for each request; nothing when one is no int32.
std::optional<std::vector<std::int32_t>> computed_tokens(const attn::Batch& batch) {
  std::vector<std::int32_t> computed;
  for (std::size_t i = 0; i < batch.seq_lens.size(); ++i) {
    const std::int64_t query_len = std::int64_t{batch.query_start_loc[i + 1]} - batch.query_start_loc[i];
    const std::int64_t tokens = batch.seq_lens[i] - query_len;
    if (tokens < std::numeric_limits<std::int32_t>::min() || tokens > std::numeric_limits<std::int32_t>::max())
      return std::nullopt;
    computed.push_back(static_cast<std::int32_t>(tokens));
  }
  return computed;
}

}  // namespace

std::unique_ptr<DeviceBatch> DeviceBatch::make(const batchtext::Step& step, LengthKind kind) {
  std::unique_ptr<DeviceBatch> made{new DeviceBatch(step, kind)};
  if (kind == LengthKind::host) return made;
  const attn::Batch& all = made->arrays_.batch();
  if (!has_rows(all)) return nullptr;
  if (kind == LengthKind::computed) {
    auto computed = computed_tokens(all);
    if (!computed) return nullptr;
    made->device_values_ = std::move(*computed);
  } else {
    made->device_values_.assign(all.seq_lens.begin(), all.seq_lens.end());
  }

  attn::Batch& host = made->host_;
  host.seq_lens = {};
  if (host.seq_lens_upper_bound.empty() && !is_decode_only(host)) {
    made->bounds_.assign(all.seq_lens.begin(), all.seq_lens.end());
    host.seq_lens_upper_bound = made->bounds_;
  }
  made->reference_lens_.assign(all.seq_lens.begin(), all.seq_lens.end());
  bool is_padding = true;
  for (std::size_t i = made->reference_lens_.size(); i-- > 0;) {
    std::int32_t& len = made->reference_lens_[i];
    const std::int32_t clamped = std::max(std::min(len, bound_of(host, i)), 0);
    is_padding = is_padding && all.query_start_loc[i] == all.query_start_loc[i + 1];
    made->num_clamped_ += !is_padding && clamped != len;
    len = clamped;
  }
  made->reference_ = host;
  made->reference_.seq_lens = made->reference_lens_;
  return made;
}

DeviceBatch::DeviceBatch(const batchtext::Step& step, LengthKind kind)
    : kind_(kind), arrays_(step), host_(arrays_.batch()), reference_(arrays_.batch()) {}

DeviceBatch::~DeviceBatch() {
  stream_.reset();  // waits
  if (ready_ != nullptr) static_cast<void>(hipEventDestroy(ready_));
  if (data_ != nullptr) static_cast<void>(hipFree(data_));
  if (staged_ != nullptr) static_cast<void>(hipHostFree(staged_));
}

void DeviceBatch::upload() {
  if (kind_ == LengthKind::host || data_ != nullptr) return;
  // Padding rows are not read: where they stand there is nothing, so that a kernel which reads them leaves the array.
  std::size_t count = device_values_.size();
  if (!attn::check_offsets(host_)) count = static_cast<std::size_t>(std::max(attn::num_unpadded_reqs(host_), 1));
  const std::size_t bytes = count * sizeof(std::int32_t);
  stream_ = std::make_unique<Stream>();
  require_hip(hipEventCreateWithFlags(&ready_, hipEventDisableTiming), "hipEventCreateWithFlags");
  require_hip(hipMalloc(&data_, bytes), "hipMalloc");
  // Pinned: a copy of other memory would be there before the build is queued.
  require_hip(hipHostMalloc(&staged_, bytes), "hipHostMalloc");
  std::copy_n(device_values_.begin(), count, staged_);
  require_hip(hipMemcpyAsync(data_, staged_, bytes, hipMemcpyHostToDevice, stream_->get()), "hipMemcpyAsync");
  require_hip(hipEventRecord(ready_, stream_->get()), "hipEventRecord");
  lengths_.data = data_;
  lengths_.kind = kind_ == LengthKind::exact ? attn::device::DeviceLengths::seq_lens
                                             : attn::device::DeviceLengths::num_computed_tokens;
  lengths_.ready = ready_;
}

namespace {

template <class T>
std::vector<T> copy_back(std::span<const T> on_device) {
  std::vector<T> host(on_device.size());
  if (!host.empty())
    require_hip(hipMemcpy(host.data(), on_device.data(), on_device.size_bytes(), hipMemcpyDeviceToHost), "hipMemcpy");
  return host;
}

}  // namespace

Downloaded download(const attn::device::DeviceMetadata& built, const Stream& stream) {
  stream.wait();
  Downloaded down;
  down.metadata = built.metadata;
  const auto fetch = [&](std::span<const std::int32_t>& span) { span = down.arrays.emplace_back(copy_back(span)); };
  fetch(down.metadata.decode.query_start_loc);
  fetch(down.metadata.extend.query_start_loc);
  fetch(down.metadata.prefill.query_start_loc);
  attn::ChunkedContext& context = down.metadata.context;
  fetch(context.context_lens);
  fetch(context.chunk_starts.data);
  fetch(context.seq_lens.data);
  fetch(context.cu_seq_lens.data);
  fetch(context.seq_tot);
  fetch(context.max_seq_lens);
  fetch(context.token_to_batch_data);
  down.token_start = copy_back(context.token_start);
  context.token_start = down.token_start;
  if (down.metadata.window) {
    fetch(down.metadata.window->seq_starts);
    fetch(down.metadata.window->seq_lens);
    fetch(down.metadata.window->cu_seq_lens);
    fetch(down.metadata.window->token_to_batch);
  }
  down.seq_lens = built.seq_lens;
  fetch(down.seq_lens);
  down.positions = built.positions;
  fetch(down.positions);
  require_hip(hipMemcpy(&down.scalars, built.scalars, sizeof down.scalars, hipMemcpyDeviceToHost), "hipMemcpy");
  return down;
}

}  // namespace properties::device
