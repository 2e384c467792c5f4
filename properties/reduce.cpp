#include "properties/reduce.hpp"

#include "properties/edit.hpp"

namespace properties {

Reduction reduce(const batchtext::Case& parsed, const Finding& first, const Check& check,
                 const std::function<bool(const Reduction&)>& may_go_on) {
  Reduction reduction;
  reduction.smallest = parsed;
  reduction.finding = first;
  const bool was_legal = is_legal(parsed);
  bool progress = true;
  bool in_time = true;
  while (progress && in_time) {
    progress = false;
    const batchtext::Case current = reduction.smallest;
    for_each_smaller(current, [&](batchtext::Case&& candidate) {
      in_time = may_go_on(reduction);
      if (!in_time) return false;
      if (was_legal && !is_legal(candidate)) return true;
      ++reduction.tried;
      auto finding = check(candidate);
      if (!finding || finding->id != first.id) return true;
      reduction.smallest = std::move(candidate);
      reduction.finding = std::move(*finding);
      ++reduction.kept;
      progress = true;
      return false;
    });
  }
  reduction.complete = in_time;
  const auto again = check(reduction.smallest);
  reduction.repeats = again && again->id == first.id;
  return reduction;
}

}  // namespace properties
