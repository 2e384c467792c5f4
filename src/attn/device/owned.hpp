#pragma once

#include "attn/error.hpp"

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

/// What the builder owns of the device: memory and events that end with their owner, and calls that are checked.
namespace attn::device {

/// The error of a HIP call, if it failed. `call` is the call's name and lives as long as the program.
[[nodiscard]] inline std::optional<Error> check(hipError_t result, std::string_view call) noexcept {
  if (result == hipSuccess) return std::nullopt;
  // HIP keeps it for whoever asks next, and that would be a launch that did not fail.
  (void)hipGetLastError();
  return Error{Error::device, -1, static_cast<std::int64_t>(result), 0, call, hipGetErrorName(result)};
}

/// Device memory.
class DeviceBlock {
 public:
  DeviceBlock() noexcept = default;
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock() {
    if (data_ != nullptr) (void)check(hipFree(data_), "hipFree");
  }

  /// To be called once; bytes > 0. Errors: device.
  [[nodiscard]] std::optional<Error> allocate(std::int64_t bytes) noexcept {
    void* data = nullptr;
    if (auto error = check(hipMalloc(&data, static_cast<std::size_t>(bytes)), "hipMalloc")) return error;
    data_ = data;
    return std::nullopt;
  }

  [[nodiscard]] void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
};

/// Host memory that the device copies from on its own.
class PinnedBlock {
 public:
  PinnedBlock() noexcept = default;
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  ~PinnedBlock() {
    if (data_ != nullptr) (void)check(hipHostFree(data_), "hipHostFree");
  }

  /// To be called once; bytes > 0. Errors: device.
  [[nodiscard]] std::optional<Error> allocate(std::int64_t bytes) noexcept {
    void* data = nullptr;
    if (auto error = check(hipHostMalloc(&data, static_cast<std::size_t>(bytes)), "hipHostMalloc")) return error;
    data_ = data;
    return std::nullopt;
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// A mark in a stream.
class Event {
 public:
  Event() noexcept = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) (void)check(hipEventDestroy(event_), "hipEventDestroy");
  }

  /// To be called once. Errors: device.
  [[nodiscard]] std::optional<Error> create() noexcept {
    hipEvent_t event = nullptr;
    if (auto error = check(hipEventCreateWithFlags(&event, hipEventDisableTiming), "hipEventCreateWithFlags"))
      return error;
    event_ = event;
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Error> record(hipStream_t stream) noexcept {
    return check(hipEventRecord(event_, stream), "hipEventRecord");
  }
  /// Makes `stream` wait for the mark; the host does not.
  [[nodiscard]] std::optional<Error> hold_up(hipStream_t stream) const noexcept {
    return check(hipStreamWaitEvent(stream, event_, 0), "hipStreamWaitEvent");
  }
  /// Makes the host wait, unless the mark has been passed.
  [[nodiscard]] std::optional<Error> wait() const noexcept {
    const hipError_t state = hipEventQuery(event_);
    if (state != hipErrorNotReady) return check(state, "hipEventQuery");
    (void)hipGetLastError();  // No error, but there are runtimes that keep it as one.
    return check(hipEventSynchronize(event_), "hipEventSynchronize");
  }

 private:
  hipEvent_t event_ = nullptr;
};

}  // namespace attn::device
