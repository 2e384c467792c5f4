#pragma once

#include "attn/device/device_metadata.hpp"
#include "attn/device/job.hpp"
#include "attn/device/owned.hpp"
#include "attn/plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace attn::device {

/// A batch that has been checked and fits, and what was decided about it.
struct PlannedBatch {
  Batch batch;
  DeviceLengths lengths;
  Plan plan;
  std::int32_t num_unpadded = 0;
};

/// What one copy takes to the device: the job, then the host's query_start_loc [num_reqs + 1] and best lengths
/// [num_reqs].
[[nodiscard]] constexpr std::int64_t input_bytes(std::int64_t num_reqs) noexcept {
  return static_cast<std::int64_t>(sizeof(Job)) + (2 * num_reqs + 1) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

/// Writes a job and what it reads of the host's to `staging` [input_bytes(num_reqs)]. Returns the bytes to copy.
[[nodiscard]] std::size_t stage_input(const PlannedBatch& planned, const Job& job, std::byte* staging) noexcept;

/// What the host knows of the metadata that a job writes.
[[nodiscard]] DeviceMetadata describe(const PlannedBatch& planned, const Job& job) noexcept;

/// The device memory that one build at a time writes. Each array has exactly the size that the capacity asks for, in an
/// allocation of its own, so that tools see the first entry written past an end.
class OutputSet {
 public:
  /// To be called once. Errors: device.
  [[nodiscard]] std::optional<Error> allocate(const Capacity& capacity, const Tiling& tiling) noexcept;

  /// Where the input belongs, the job at its start.
  [[nodiscard]] std::byte* input() const noexcept { return input_; }
  [[nodiscard]] const Job* job_on_device() const noexcept { return reinterpret_cast<const Job*>(input_); }

  /// What there is to do for a batch, in this set's memory.
  [[nodiscard]] Job job_for(const PlannedBatch& planned) const noexcept;

 private:
  class Allocator;
  static constexpr std::size_t num_blocks = 21;

  std::array<DeviceBlock, num_blocks> blocks_;
  std::byte* input_ = nullptr;
  Job empty_{};  ///< has all pointers to outputs, and nothing to do
  Tiling tiling_;
};

}  // namespace attn::device
