#include "batchtext/batchtext.hpp"

#include <algorithm>
#include <limits>

namespace batchtext {
namespace {

constexpr std::int64_t int32_max = std::numeric_limits<std::int32_t>::max();

std::vector<std::int32_t> offsets_of(const Step& step) {
  if (step.query_start_loc)
    return std::vector<std::int32_t>(step.query_start_loc->begin(), step.query_start_loc->end());
  std::vector<std::int32_t> offsets(step.requests.size() + 1);
  for (std::size_t i = 0; i < step.requests.size(); ++i) offsets[i + 1] = offsets[i] + step.requests[i].query_len;
  return offsets;
}

std::vector<std::int32_t> lens_of(const Step& step, const Lens& lens) {
  if (lens.source == Lens::raw) return std::vector<std::int32_t>(lens.values.begin(), lens.values.end());
  if (lens.source == Lens::none) return {};
  std::vector<std::int32_t> values(step.requests.size());
  std::transform(step.requests.begin(), step.requests.end(), values.begin(),
                 [](const Request& r) { return r.seq_len; });
  return values;
}

std::int32_t longest_query(const std::vector<std::int32_t>& offsets) {
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < offsets.size(); ++i)
    longest = std::max(longest, std::int64_t{offsets[i]} - offsets[i - 1]);
  return static_cast<std::int32_t>(std::min(longest, int32_max));
}

std::int32_t longest_seq(const Step& step) {
  std::int32_t longest = 0;
  for (const Request& request : step.requests) longest = std::max(longest, request.seq_len);
  for (const Lens* lens : {&step.seq_lens, &step.seq_lens_upper_bound})
    for (const std::int32_t value : lens->values) longest = std::max(longest, value);
  return longest;
}

}  // namespace

Arrays::Arrays(const Step& step)
    : query_start_loc_(offsets_of(step)),
      seq_lens_(lens_of(step, step.seq_lens)),
      seq_lens_upper_bound_(lens_of(step, step.seq_lens_upper_bound)) {
  const auto num_offsets = static_cast<std::int64_t>(query_start_loc_.size());
  batch_.num_reqs = step.num_reqs.value_or(static_cast<std::int32_t>(std::max<std::int64_t>(num_offsets - 1, 0)));
  batch_.query_start_loc = query_start_loc_;
  batch_.seq_lens = seq_lens_;
  batch_.seq_lens_upper_bound = seq_lens_upper_bound_;
  batch_.num_actual_tokens = step.num_actual_tokens.value_or(query_start_loc_.empty() ? 0 : query_start_loc_.back());
  batch_.max_query_len = step.max_query_len.value_or(longest_query(query_start_loc_));
  batch_.max_seq_len = step.max_seq_len.value_or(longest_seq(step));
  batch_.config = step.config;
}

}  // namespace batchtext
