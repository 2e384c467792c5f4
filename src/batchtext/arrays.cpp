#include "batchtext/batchtext.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
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

/// The number of requests that most of `batch`, `query_start_loc`, `seq_lens` and `seq_lens_upper_bound` say; where as
/// many say another, the first of them in this order. So what is one too long or too short is what an error names.
std::int32_t count_reqs(const Step& step, std::size_t offsets, std::size_t seq_lens, std::size_t upper_bound) {
  // What is empty says nothing.
  const std::array<std::size_t, 4> said{step.requests.size(), offsets > 0 ? offsets - 1 : 0, seq_lens, upper_bound};
  std::size_t chosen = 0;
  std::ptrdiff_t most = 0;
  for (const std::size_t num_reqs : said) {
    const auto votes = num_reqs > 0 ? std::count(said.begin(), said.end(), num_reqs) : 0;
    if (votes <= most) continue;
    most = votes;
    chosen = num_reqs;
  }
  return static_cast<std::int32_t>(chosen);
}

}  // namespace

Arrays::Arrays(const Step& step)
    : query_start_loc_(offsets_of(step)),
      seq_lens_(lens_of(step, step.seq_lens)),
      seq_lens_upper_bound_(lens_of(step, step.seq_lens_upper_bound)) {
  batch_.num_reqs =
      step.num_reqs.value_or(count_reqs(step, query_start_loc_.size(), seq_lens_.size(), seq_lens_upper_bound_.size()));
  batch_.query_start_loc = query_start_loc_;
  batch_.seq_lens = seq_lens_;
  batch_.seq_lens_upper_bound = seq_lens_upper_bound_;
  batch_.num_actual_tokens = step.num_actual_tokens.value_or(query_start_loc_.empty() ? 0 : query_start_loc_.back());
  batch_.max_query_len = step.max_query_len.value_or(longest_query(query_start_loc_));
  batch_.max_seq_len = step.max_seq_len.value_or(longest_seq(step));
  batch_.config = step.config;
}

}  // namespace batchtext
