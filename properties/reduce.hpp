#pragma once

#include "properties/check.hpp"

#include <cstdint>
#include <functional>

namespace properties {

/// What reducing a case came to.
struct Reduction {
  batchtext::Case smallest;
  Finding finding;         ///< of the smallest case
  std::int64_t tried = 0;  ///< cases that ran
  std::int64_t kept = 0;   ///< of those, the ones that had the same finding and were smaller
  bool complete = false;   ///< no smaller case has the finding; false when time ran out
  bool repeats = false;    ///< the smallest case, run once more, has the finding again
};

using Check = std::function<std::optional<Finding>(const batchtext::Case&)>;

/// Looks for the smallest case with a finding of the same id, by the steps of `smaller_cases`, until none is left or
/// `may_go_on` says no. `first` is the finding of `parsed`. The finding's id never changes on the way.
[[nodiscard]] Reduction reduce(const batchtext::Case& parsed, const Finding& first, const Check& check,
                               const std::function<bool(const Reduction&)>& may_go_on);

}  // namespace properties
