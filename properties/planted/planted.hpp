#pragma once

#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace planted {

/// How much of what there is gets checked.
struct Share {
  std::size_t one_file_in = 1;  ///< of the corpus
  std::uint64_t num_drawn = 0;
};

/// Checks the corpus in `folder`, then drawn cases, until one fails by the invariant `expected_id`, a crash
/// while it is checked included: then it says so in a line, and the process ends with 0. Returns 1 when none does.
[[nodiscard]] int look_for(const std::string& expected_id, const std::string& folder, const Share& share,
                           const std::function<batchtext::Case(std::uint64_t)>& draw,
                           const std::function<std::optional<properties::Finding>(const batchtext::Case&)>& check);

}  // namespace planted
