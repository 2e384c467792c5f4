#pragma once

#include "properties/device/run.hpp"
#include "properties/invariants.hpp"

namespace properties::device {

/// What the CPU path says of a batch, for comparison: of the host's side alone, and with the lengths the device uses.
struct Expected {
  const attn::Batch& batch;         ///< DeviceBatch::reference()
  const attn::Metadata& host;       ///< of DeviceBatch::host(): sizes, and the numbers the host knows
  const attn::Metadata& reference;  ///< of DeviceBatch::reference(): the values
  std::int32_t num_clamped = 0;     ///< DeviceBatch::num_clamped()
};

/// Where a build's metadata differs from the CPU path's, element by element. Passes beyond the exact number have to be
/// empty, and token maps 0 behind the exact total.
[[nodiscard]] Verdict compare(const Downloaded& found, const Expected& expected);

/// Where two builds of one batch differ, in any element.
[[nodiscard]] Verdict compare(const Downloaded& found, const Downloaded& expected);

}  // namespace properties::device
