#pragma once

#include "attn/device/device_metadata.hpp"
#include "attn/plan.hpp"

#include <optional>

namespace attn::device {

/// Errors: invalid_capacity.
[[nodiscard]] std::optional<Error> check_capacity(const Capacity& capacity) noexcept;

/// Errors: invalid_capacity, capacity_exceeded.
[[nodiscard]] std::optional<Error> check_tiling(const Tiling& tiling) noexcept;

/// Whether kernels can cut the contexts of a batch. Errors: unsupported_policy.
[[nodiscard]] std::optional<Error> check_policy(const Batch& batch) noexcept;

/// Whether a planned batch has room. Errors: capacity_exceeded.
[[nodiscard]] std::optional<Error> check_fit(const Batch& batch, const Plan& plan, const Capacity& capacity) noexcept;

}  // namespace attn::device
