#pragma once

#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

/// The device path for the commands. A program that was built without HIP has it too, and says so.
namespace cli {

/// Why batches cannot be built on a device, in a line; nothing when they can. Asks the runtime, which a process that
/// forks afterwards must not do.
[[nodiscard]] std::optional<std::string> no_device_path();

/// Steps of a case that are too large to be built on the device.
[[nodiscard]] std::int64_t num_left_out_on_device(const batchtext::Case& parsed);

/// properties::device::check_case.
[[nodiscard]] std::optional<properties::Finding> check_on_device(const batchtext::Case& parsed);

/// Builds a step on the device, from the exact lengths there and the bounds here where the step has both, and shows
/// what came back; `scalars` is what only the device knew. Throws InputError when HIP fails.
void show_from_device(
    const batchtext::Step& step,
    const std::function<void(const tl::expected<attn::Metadata, attn::Error>&, const std::string& scalars)>& show);

}  // namespace cli
