#include "properties/reduce.hpp"

#include "properties/edit.hpp"

namespace properties {

Reduction reduce(const batchtext::Case& parsed, const Finding& first, const Check& check,
                 const std::function<bool(const Reduction&)>& may_go_on) {
  Reduction reduction;
  reduction.smallest = parsed;
  reduction.finding = first;
  bool progress = true;
  bool in_time = true;
  while (progress && in_time) {
    progress = false;
    for (batchtext::Case& candidate : smaller_cases(reduction.smallest)) {
      in_time = may_go_on(reduction);
      if (!in_time) break;
      ++reduction.tried;
      auto finding = check(candidate);
      if (!finding || finding->id != first.id) continue;
      reduction.smallest = std::move(candidate);
      reduction.finding = std::move(*finding);
      ++reduction.kept;
      progress = true;
      break;
    }
  }
  reduction.complete = in_time;
  const auto again = check(reduction.smallest);
  reduction.repeats = again && again->id == first.id;
  return reduction;
}

}  // namespace properties
