#pragma once

#include "attn/device/device_metadata.hpp"
#include "batchtext/batchtext.hpp"

#include <hip/hip_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// Batches on the device: lengths up, metadata down.
namespace properties::device {

/// HIP failed where the harness itself calls it.
struct HipFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws HipFailure with the call and HIP's name for the error, unless all is well.
void require_hip(hipError_t error, const char* call);

/// Why no device can be used, in a line; nothing when one can.
[[nodiscard]] std::optional<std::string> no_device();

/// A stream that ends with its scope, behind what is queued on it.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] hipStream_t get() const { return stream_; }
  void wait() const;

 private:
  hipStream_t stream_ = nullptr;
};

/// Whose lengths a build uses.
enum class LengthKind : std::uint8_t {
  host,      ///< the batch's own
  exact,     ///< seq_lens that only the device knows
  computed,  ///< num_computed_tokens that only the device knows
};
inline constexpr LengthKind length_kinds[]{LengthKind::host, LengthKind::exact, LengthKind::computed};
[[nodiscard]] const char* name(LengthKind kind);

/// A step as a server with asynchronous scheduling has it: the host knows bounds, the device exact lengths.
///
/// For LengthKind::host it is the step's batch, and nothing is on the device. For the others the host loses `seq_lens`,
/// which go to the device, and keeps `seq_lens_upper_bound`; where there are none, and the batch is not decode-only,
/// the exact lengths stand in for them.
class DeviceBatch {
 public:
  /// Not every step has every kind: nothing without exact lengths, or when a count of computed tokens leaves int32.
  [[nodiscard]] static std::unique_ptr<DeviceBatch> make(const batchtext::Step& step, LengthKind kind);
  ~DeviceBatch();
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;

  /// What the host hands over.
  [[nodiscard]] const attn::Batch& host() const { return host_; }
  /// The same with the lengths the device uses, each within its bound: what the CPU path gets for comparison.
  [[nodiscard]] const attn::Batch& reference() const { return reference_; }
  [[nodiscard]] const attn::device::DeviceLengths& lengths() const { return lengths_; }
  /// Requests that are not padding whose length on the device is not the one in `reference`.
  [[nodiscard]] std::int32_t num_clamped() const { return num_clamped_; }
  [[nodiscard]] LengthKind kind() const { return kind_; }

  /// Copies the lengths of all requests but padding to the device, on a stream of their own, which the host does not
  /// wait for; `lengths().ready` is recorded behind them.
  void upload();

 private:
  DeviceBatch(const batchtext::Step& step, LengthKind kind);

  LengthKind kind_;
  batchtext::Arrays arrays_;
  attn::Batch host_;
  attn::Batch reference_;
  std::vector<std::int32_t> bounds_;  ///< what the device may not exceed, where the step has none
  std::vector<std::int32_t> reference_lens_;
  std::int32_t num_clamped_ = 0;
  std::vector<std::int32_t> device_values_;
  std::unique_ptr<Stream> stream_;
  std::int32_t* staged_ = nullptr;  ///< pinned
  std::int32_t* data_ = nullptr;
  hipEvent_t ready_ = nullptr;
  attn::device::DeviceLengths lengths_;
};

/// A build's metadata on the host: arrays of its own, and views of them. Numbers that the host knew stay as they were.
struct Downloaded {
  attn::Metadata metadata;
  std::span<const std::int32_t> seq_lens;
  std::span<const std::int32_t> positions;
  attn::device::DeviceScalars scalars{};
  std::deque<std::vector<std::int32_t>> arrays;
  std::vector<std::int64_t> token_start;

  Downloaded() = default;
  Downloaded(const Downloaded&) = delete;
  Downloaded& operator=(const Downloaded&) = delete;
  Downloaded(Downloaded&&) = default;
  Downloaded& operator=(Downloaded&&) = default;
};

/// Waits for the stream and copies everything back.
[[nodiscard]] Downloaded download(const attn::device::DeviceMetadata& built, const Stream& stream);

}  // namespace properties::device
