#include "properties/edit.hpp"

#include "properties/errors.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace properties {
namespace {

using batchtext::Case;
using batchtext::Lens;
using batchtext::Request;
using batchtext::Step;

bool follows_requests(const Step& step, const Lens& lens) {
  return lens.source == Lens::raw && lens.values.size() == step.requests.size();
}

/// Calls `edit` for each raw array of lengths that has one entry for each request.
template <class Edit>
void for_each_raw(Step& step, Edit edit) {
  // Both are looked at first: an edit of one may not change what the other is compared with.
  const bool exact = follows_requests(step, step.seq_lens);
  const bool bound = follows_requests(step, step.seq_lens_upper_bound);
  if (exact) edit(step.seq_lens.values);
  if (bound) edit(step.seq_lens_upper_bound.values);
}

/// 0 decode, 1 extend, 2 prefill, 3 padding: the order a batch wants.
int order_of(const Step& step, std::size_t req, bool any_long) {
  const Request& request = step.requests[req];
  const bool by_bound = follows_requests(step, step.seq_lens_upper_bound);
  const std::int32_t seq_len = by_bound ? step.seq_lens_upper_bound.values[req] : request.seq_len;
  if (request.query_len == 0) return any_long ? 3 : 0;
  if (request.query_len <= step.config.decode_threshold) return 0;
  return seq_len == request.query_len ? 2 : 1;
}

void apply_order(Step& step, const std::vector<std::size_t>& order) {
  const auto pick = [&](const auto& values) {
    auto picked = values;
    picked.clear();
    for (const std::size_t from : order) picked.push_back(values[from]);
    return picked;
  };
  for_each_raw(step, [&](auto& values) { values = pick(values); });
  step.requests = pick(step.requests);
}

/// The requests that fit what a text can hold.
void keep_within_limits(Step& step) {
  std::int64_t tokens = 0;
  std::size_t fits = 0;
  while (fits < step.requests.size() && static_cast<std::int64_t>(fits) < batchtext::max_requests) {
    tokens += step.requests[fits].query_len;
    if (tokens > 2147483647) break;
    ++fits;
  }
  if (fits == step.requests.size()) return;
  for_each_raw(step, [&](auto& values) { values.resize(fits); });
  step.requests.resize(fits);
}

// ---- shrinking ------------------------------------------------------------------------------------------------------

/// Hands out what is left of a case after small changes to one of its steps, one at a time, until told to stop.
class Candidates {
 public:
  Candidates(const Case& parsed, const std::function<bool(Case&&)>& visit) : parsed_(parsed), visit_(visit) {}

  [[nodiscard]] bool stopped() const { return stopped_; }
  void add(Case smaller) {
    if (!stopped_ && !(smaller == parsed_)) stopped_ = !visit_(std::move(smaller));
  }
  template <class Edit>
  void edit(std::size_t step, Edit change) {
    if (stopped_) return;
    Case smaller = parsed_;
    change(smaller.steps[step]);
    add(std::move(smaller));
  }

 private:
  const Case& parsed_;
  const std::function<bool(Case&&)>& visit_;
  bool stopped_ = false;
};

void drop_range(Step& step, std::size_t first, std::size_t count) {
  const auto erase = [&](auto& values) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    values.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  for_each_raw(step, erase);
  erase(step.requests);
}

void shrink_requests(Candidates& candidates, std::size_t s, const Step& step) {
  const std::size_t count = step.requests.size();
  // One alone: where a fault hangs on how many there are, no small step leads there.
  for (std::size_t kept = 0; kept < count && count > 1 && !candidates.stopped(); ++kept) {
    if (kept > 0 && step.requests[kept] == step.requests[kept - 1]) continue;
    candidates.edit(s, [&](Step& smaller) {
      drop_range(smaller, kept + 1, count - kept - 1);
      drop_range(smaller, 0, kept);
    });
  }
  for (std::size_t size = count / 2; size >= 1; size /= 2)
    for (std::size_t first = 0; first + size <= count && !candidates.stopped(); first += size)
      candidates.edit(s, [&](Step& smaller) { drop_range(smaller, first, size); });
  if (count == 1) candidates.edit(s, [&](Step& smaller) { drop_range(smaller, 0, 1); });
}

/// Numbers from 0 to below `from`, each nearer to it by half: whatever failing takes at least is found in a few dozen
/// steps, also when it is near 2^31.
std::vector<std::int32_t> numbers_below(std::int32_t from) {
  std::vector<std::int32_t> numbers;
  if (from > 0) numbers.push_back(0);
  for (std::int32_t less = from / 2; less > 0; less /= 2) numbers.push_back(from - less);
  return numbers;
}

/// A request with shorter lengths. Context and query shrink apart, so that a class can stay while lengths fall.
void shrink_lengths(Candidates& candidates, std::size_t s, const Step& step) {
  for (std::size_t req = 0; req < step.requests.size() && !candidates.stopped(); ++req) {
    const Request from = step.requests[req];
    if (req > 0 && from == step.requests[req - 1]) continue;  // its twin says the same
    const std::int32_t context = from.seq_len - from.query_len;
    const std::int32_t threshold = step.config.decode_threshold;
    const auto try_lengths = [&](std::int64_t query_len, std::int64_t other_context) {
      if (query_len < 0 || query_len + other_context < 0 || query_len + other_context > 2147483647) return;
      const Request to{static_cast<std::int32_t>(query_len), static_cast<std::int32_t>(query_len + other_context)};
      candidates.edit(s, [&](Step& smaller) { set_request(smaller, req, to); });
    };
    for (const std::int32_t shorter : numbers_below(context)) try_lengths(from.query_len, shorter);
    if (context < 0) try_lengths(from.query_len, 0);
    const std::int64_t just_long = std::int64_t{threshold} + 1;
    for (const std::int64_t shorter : {std::int64_t{0}, std::int64_t{1}, std::int64_t{threshold}, just_long})
      if (shorter < from.query_len) try_lengths(shorter, context);
    for (const std::int32_t shorter : numbers_below(from.query_len)) try_lengths(shorter, context);
  }
}

/// Settings nearer to their defaults, arrays nearer to what the requests imply.
void shrink_settings(Candidates& candidates, std::size_t s, const Step& step) {
  const auto set = [&](auto change) { candidates.edit(s, change); };
  set([](Step& smaller) { smaller.config = {}; });
  set([](Step& smaller) { smaller.query_start_loc.reset(); });
  set([](Step& smaller) { smaller.num_reqs.reset(); });
  set([](Step& smaller) { smaller.num_actual_tokens.reset(); });
  for (const std::int32_t less : numbers_below(step.num_actual_tokens.value_or(0)))
    set([&](Step& smaller) { smaller.num_actual_tokens = less; });
  set([](Step& smaller) { smaller.max_query_len.reset(); });
  set([](Step& smaller) { smaller.max_seq_len.reset(); });
  set([](Step& smaller) { smaller.seq_lens = {Lens::from_batch, {}}; });
  set([](Step& smaller) { smaller.seq_lens_upper_bound = Lens{}; });
  set([](Step& smaller) { smaller.config.window_left.reset(); });
  set([](Step& smaller) { smaller.config.chunk_policy = attn::ChunkPolicy::equal_share; });
  for (const std::int32_t less : numbers_below(step.config.chunk_alignment))
    if (less > 0) set([&](Step& smaller) { smaller.config.chunk_alignment = less; });
  for (const std::int32_t shorter : numbers_below(step.config.decode_threshold))
    if (shorter > 0) set([&](Step& smaller) { smaller.config.decode_threshold = shorter; });
  if (step.config.window_left.value_or(0) > 0) set([](Step& smaller) { *smaller.config.window_left /= 2; });
  if (step.schedule_seed > 0) {
    set([](Step& smaller) { smaller.schedule_seed = 0; });
    set([](Step& smaller) { smaller.schedule_seed /= 2; });
  }
  if (step.fail_call) {
    set([](Step& smaller) { smaller.fail_call.reset(); });
    set([](Step& smaller) { *smaller.fail_call -= *smaller.fail_call / 2; });
    if (*step.fail_call > 1) set([](Step& smaller) { *smaller.fail_call -= 1; });
  }
  const std::int32_t workspace = step.config.workspace_tokens;
  if (workspace > 0 && workspace != attn::Config{}.workspace_tokens) {
    for (const std::int32_t less : numbers_below(workspace))
      set([&](Step& smaller) { smaller.config.workspace_tokens = less; });
  }
}

}  // namespace

void drop_request(Step& step, std::size_t at) { drop_range(step, at, 1); }

void insert_request(Step& step, std::size_t at, const Request& request) {
  for_each_raw(step,
               [&](auto& values) { values.insert(values.begin() + static_cast<std::ptrdiff_t>(at), request.seq_len); });
  step.requests.insert(step.requests.begin() + static_cast<std::ptrdiff_t>(at), request);
}

void set_request(Step& step, std::size_t at, const Request& request) {
  const std::int64_t change = std::int64_t{request.seq_len} - step.requests[at].seq_len;
  for_each_raw(step, [&](auto& values) {
    values[at] = static_cast<std::int32_t>(std::clamp<std::int64_t>(values[at] + change, 0, 2147483647));
  });
  step.requests[at] = request;
}

void swap_requests(Step& step, std::size_t a, std::size_t b) {
  for_each_raw(step, [&](auto& values) { std::swap(values[a], values[b]); });
  std::swap(step.requests[a], step.requests[b]);
}

void put_in_order(Step& step) {
  step.query_start_loc.reset();
  step.num_reqs.reset();
  step.max_query_len.reset();
  step.max_seq_len.reset();
  const bool any_long = std::any_of(step.requests.begin(), step.requests.end(), [&](const Request& request) {
    return request.query_len > step.config.decode_threshold;
  });
  std::vector<std::size_t> order(step.requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto stands_before = [&](std::size_t a, std::size_t b) {
    return order_of(step, a, any_long) < order_of(step, b, any_long);
  };
  if (!std::is_sorted(order.begin(), order.end(), stands_before)) {
    std::stable_sort(order.begin(), order.end(), stands_before);
    apply_order(step, order);
  }
  keep_within_limits(step);
  std::int64_t tokens = 0;
  for (const Request& request : step.requests) tokens += request.query_len;
  if (step.num_actual_tokens.value_or(0) < tokens) step.num_actual_tokens.reset();
}

bool is_legal(const Step& step) {
  const batchtext::Arrays arrays{step};
  ErrorKinds broken = broken_rules(arrays.batch(), attn::MetadataBuilder::default_max_entries);
  for (const auto kind : {attn::Error::workspace_too_small, attn::Error::sum_overflow, attn::Error::capacity_exceeded})
    broken.reset(kind);
  return broken.none();
}

bool is_legal(const Case& parsed) {
  return std::all_of(parsed.steps.begin(), parsed.steps.end(), [](const Step& step) { return is_legal(step); });
}

void for_each_smaller(const Case& parsed, const std::function<bool(Case&&)>& visit) {
  Candidates candidates{parsed, visit};
  const std::size_t count = parsed.steps.size();
  for (std::size_t s = 0; s < count && count > 1; ++s) candidates.add(Case{{parsed.steps[s]}});
  for (std::size_t s = 0; s < count && count > 1; ++s) {
    Case without = parsed;
    without.steps.erase(without.steps.begin() + static_cast<std::ptrdiff_t>(s));
    candidates.add(std::move(without));
  }
  for (std::size_t s = 0; s < count; ++s) shrink_requests(candidates, s, parsed.steps[s]);
  // Of all steps at once: a fault may need that their settings are the same.
  Case with_defaults = parsed;
  for (Step& step : with_defaults.steps) step.config = {};
  candidates.add(std::move(with_defaults));
  for (std::size_t s = 0; s < count; ++s) shrink_settings(candidates, s, parsed.steps[s]);
  for (std::size_t s = 0; s < count; ++s) shrink_lengths(candidates, s, parsed.steps[s]);
}

std::vector<Case> smaller_cases(const Case& parsed) {
  std::vector<Case> smaller;
  const bool was_legal = is_legal(parsed);
  for_each_smaller(parsed, [&](Case&& candidate) {
    if (!was_legal || is_legal(candidate)) smaller.push_back(std::move(candidate));
    return true;
  });
  return smaller;
}

}  // namespace properties
