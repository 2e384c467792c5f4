#pragma once

#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace planted {

/// Checks the corpus in `folder`, then `num_drawn` drawn cases, until one fails by the invariant `expected_id`, a crash
/// while it is checked included: then it says so in a line, and the process ends with 0. Returns 1 when none does.
[[nodiscard]] int look_for(const std::string& expected_id, const std::string& folder, std::uint64_t num_drawn,
                           const std::function<batchtext::Case(std::uint64_t)>& draw,
                           const std::function<std::optional<properties::Finding>(const batchtext::Case&)>& check);

}  // namespace planted
