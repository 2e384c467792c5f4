#pragma once

#include "fuzz/target.hpp"
#include "properties/device/run.hpp"
#include "properties/device/steer.hpp"

/// What the device targets ask before they check anything: without an answer a run says so, and claims nothing.
namespace fuzz {

/// Whether a device answers.
[[nodiscard]] inline bool on_device() {
  static const auto reason = properties::device::no_device();
  if (reason) skip(*reason);
  return !reason;
}

/// Whether it also lets its calls be made to fail.
[[nodiscard]] inline bool on_failing_device() {
  if (!on_device()) return false;
  if (!properties::device::can_steer()) skip("calls of this runtime cannot be made to fail");
  return properties::device::can_steer();
}

}  // namespace fuzz
