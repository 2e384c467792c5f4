#include "fuzz/mutate.hpp"

#include "properties/edit.hpp"

#include <algorithm>
#include <cstdint>

namespace fuzz {
namespace {

using batchtext::Case;
using batchtext::Lens;
using batchtext::Request;
using batchtext::Step;
using properties::clamp_length;
using properties::Random;

/// Requests a mutated batch may grow to: what more of them show, the boundary classes show already.
constexpr std::size_t max_requests = 24;

std::size_t any_of(Random& random, std::size_t count) {
  return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));
}

void add_request(Step& step, Random& random) {
  if (step.requests.size() >= max_requests) return;
  properties::insert_request(step, any_of(random, step.requests.size() + 1), properties::draw_request(random, step));
}

void duplicate_request(Step& step, Random& random) {
  if (step.requests.empty() || step.requests.size() >= max_requests) return;
  const std::size_t from = any_of(random, step.requests.size());
  const Request copy = step.requests[from];
  for (auto times = random.between(1, 3); times > 0; --times) properties::insert_request(step, from, copy);
}

void drop_request(Step& step, Random& random) {
  if (!step.requests.empty()) properties::drop_request(step, any_of(random, step.requests.size()));
}

void swap_requests(Step& step, Random& random) {
  if (step.requests.size() < 2) return;
  properties::swap_requests(step, any_of(random, step.requests.size()), any_of(random, step.requests.size()));
}

/// Moves a query or a context to a boundary, or by one.
void move_length(Step& step, Random& random) {
  if (step.requests.empty()) return;
  const std::size_t at = any_of(random, step.requests.size());
  const Request from = step.requests[at];
  const std::int64_t context = std::int64_t{from.seq_len} - from.query_len;
  const std::int64_t boundary = properties::draw_boundary(random, step);
  const std::int64_t by_one = random.chance(50) ? 1 : -1;
  Request to = from;
  switch (random.below(6)) {
    case 0:
      to = {clamp_length(boundary), clamp_length(boundary + context)};
      break;
    case 1:
      to.seq_len = clamp_length(from.query_len + boundary);
      break;
    case 2:
      to.seq_len = clamp_length(boundary);
      break;
    case 3:
      to.seq_len = clamp_length(from.seq_len + by_one);
      break;
    case 4:
      to = {clamp_length(from.query_len + by_one), clamp_length(from.query_len + by_one + context)};
      break;
    default:
      to.seq_len = from.query_len;
      break;
  }
  properties::set_request(step, at, to);
}

/// All contexts but one away, or all the same.
void level_contexts(Step& step, Random& random) {
  if (step.requests.empty()) return;
  const std::size_t kept = any_of(random, step.requests.size());
  const bool all_but_one_empty = random.chance(50);
  const Request model = step.requests[kept];
  for (std::size_t i = 0; i < step.requests.size(); ++i) {
    const std::int32_t query_len = step.requests[i].query_len;
    if (i == kept || query_len <= step.config.decode_threshold) continue;
    const std::int64_t context = all_but_one_empty ? 0 : std::int64_t{model.seq_len} - model.query_len;
    properties::set_request(step, i, {query_len, clamp_length(query_len + context)});
  }
}

void change_config(Step& step, Random& random) {
  const attn::Config drawn = properties::draw_config(random);
  switch (random.below(6)) {
    case 0:
      step.config.decode_threshold = drawn.decode_threshold;
      break;
    case 1:
      step.config.workspace_tokens = drawn.workspace_tokens;
      break;
    case 2:
      step.config.window_left = drawn.window_left;
      break;
    case 3:
      step.config.chunk_policy = drawn.chunk_policy;
      step.config.chunk_alignment = drawn.chunk_alignment;
      break;
    case 4:
      step.config.workspace_tokens = properties::draw_boundary(random, step);
      break;
    default:
      step.config = drawn;
      break;
  }
}

/// Which lengths are handed over, and scalars above what they have to be.
void change_lengths_given(Step& step, Random& random) {
  switch (random.below(6)) {
    case 0:
      step.seq_lens = {Lens::from_batch, {}};
      break;
    case 1:
      step.seq_lens = Lens{};
      break;
    case 2:
      step.seq_lens_upper_bound = {Lens::from_batch, {}};
      break;
    case 3:
      step.seq_lens_upper_bound = Lens{};
      break;
    case 4:
      step.max_query_len = clamp_length(properties::draw_boundary(random, step));
      break;
    default:
      step.seq_lens_upper_bound = {Lens::raw, {}};
      for (const Request& request : step.requests)
        step.seq_lens_upper_bound.values.push_back(
            clamp_length(request.seq_len + std::int64_t{random.pick({0, 0, 1, 5})}));
  }
}

void pad(Step& step, Random& random) {
  for (auto count = random.between(1, 4); count > 0 && step.requests.size() < max_requests; --count)
    properties::insert_request(step, step.requests.size(), {0, clamp_length(random.below(100))});
}

void pad_tokens(Step& step, Random& random) { properties::pad_to_captured_size(random, step); }

/// Small seeds are the ones a person reads; beyond them one is as good as another.
void change_schedule(Step& step, Random& random) {
  constexpr std::int64_t small_seeds = 16;
  step.schedule_seed = static_cast<std::int32_t>(random.below(random.chance(70) ? small_seeds : std::int64_t{1} << 31));
}

void change_fail_call(Step& step, Random& random) {
  constexpr std::int64_t calls_of_a_build = 40;  // a call that a build never gets to is a build without a fault
  step.fail_call.reset();
  if (random.chance(80)) step.fail_call = static_cast<std::int32_t>(random.between(1, calls_of_a_build));
}

using Edit = void (*)(Step&, Random&);
constexpr Edit edits[]{add_request,   add_request,   duplicate_request,    drop_request, swap_requests,
                       move_length,   move_length,   move_length,          move_length,  level_contexts,
                       change_config, change_config, change_lengths_given, pad,          pad_tokens};

/// A number in a raw array, or one of the scalars, changed to anything.
void break_something(Step& step, Random& random) {
  if (random.chance(60)) {
    const auto kind = static_cast<attn::Error::Kind>(random.below(attn::Error::num_kinds));
    if (properties::is_builder_kind(kind)) step = properties::draw_malformed(random, kind, max_entries);
    return;
  }
  const std::int32_t value =
      random.chance(30) ? -1 - properties::draw_boundary(random, step) : properties::draw_boundary(random, step);
  switch (random.below(7)) {
    case 0:
      step.num_reqs = value;
      break;
    case 1:
      step.num_actual_tokens = value;
      break;
    case 2:
      step.max_query_len = value;
      break;
    case 3:
      step.max_seq_len = value;
      break;
    case 4:
      if (step.seq_lens.values.empty()) step.seq_lens = {Lens::raw, std::vector<std::int32_t>(step.requests.size(), 9)};
      if (!step.seq_lens.values.empty()) step.seq_lens.values[any_of(random, step.seq_lens.values.size())] = value;
      break;
    case 5:
      step.config.window_left = value;
      break;
    default: {
      const batchtext::Arrays arrays{step};
      const auto offsets = arrays.batch().query_start_loc;
      step.query_start_loc.emplace(offsets.begin(), offsets.end());
      if (random.chance(10)) step.query_start_loc->clear();
      if (!step.query_start_loc->empty()) (*step.query_start_loc)[any_of(random, offsets.size())] = value;
    }
  }
}

void mutate_steps(Case& parsed, const Mutations& mutations, Random& random) {
  if (mutations.max_steps < 2) return;
  if (random.chance(8) && parsed.steps.size() < mutations.max_steps) {
    const std::size_t from = any_of(random, parsed.steps.size());
    parsed.steps.insert(parsed.steps.begin() + static_cast<std::ptrdiff_t>(any_of(random, parsed.steps.size() + 1)),
                        random.chance(60) ? Step{parsed.steps[from]} : properties::draw_step(random));
  }
  if (random.chance(12) && parsed.steps.size() > 1)
    parsed.steps.erase(parsed.steps.begin() + static_cast<std::ptrdiff_t>(any_of(random, parsed.steps.size())));
  if (random.chance(5) && parsed.steps.size() > 1)
    std::swap(parsed.steps[any_of(random, parsed.steps.size())], parsed.steps[any_of(random, parsed.steps.size())]);
}

/// The case's text, with as few requests and steps dropped as it takes to fit.
std::string print_to_fit(Case& parsed, std::size_t max_size) {
  std::string text = batchtext::print(parsed);
  while (text.size() > max_size) {
    if (parsed.steps.size() > 1) {
      parsed.steps.pop_back();
    } else if (Step& step = parsed.steps[0]; step.requests.size() > 1) {
      step.requests.resize(step.requests.size() / 2);
      step.seq_lens = {Lens::from_batch, {}};
      step.seq_lens_upper_bound = Lens{};
      step.query_start_loc.reset();
    } else {
      parsed.steps[0] = Step{};
    }
    batchtext::print(parsed, text);
  }
  return text;
}

/// Requests whose tokens leave int32, or are too many, do not print to a text that parses.
bool fits_text(const Step& step) {
  std::int64_t tokens = 0;
  for (const Request& request : step.requests) tokens += request.query_len;
  return tokens <= 2147483647;
}

}  // namespace

std::string mutate(std::string_view text, std::size_t max_size, const Mutations& mutations, Random& random) {
  auto parsed = batchtext::parse(text);
  if (!parsed || random.chance(1))
    parsed = properties::draw_case(random, static_cast<int>(std::min<std::size_t>(mutations.max_steps, 3)));
  if (parsed->steps.size() > max_steps) parsed->steps.resize(max_steps);
  mutate_steps(*parsed, mutations, random);
  Step& step = parsed->steps[any_of(random, parsed->steps.size())];
  for (auto count = random.between(1, 3); count > 0; --count) edits[any_of(random, std::size(edits))](step, random);
  // Most batches stay in order: an unordered one gets no further than its error.
  if (!fits_text(step) || !random.chance(10)) properties::put_in_order(step);
  if (random.chance(mutations.malformed_percent)) break_something(step, random);
  if (random.chance(mutations.schedule_percent)) change_schedule(step, random);
  if (random.chance(mutations.fail_call_percent)) change_fail_call(step, random);
  return print_to_fit(*parsed, max_size);
}

std::string cross_over(std::string_view first, std::string_view second, std::size_t max_size,
                       const Mutations& mutations, Random& random) {
  auto a = batchtext::parse(first);
  const auto b = batchtext::parse(second);
  if (!a || !b) return mutate(a ? first : second, max_size, mutations, random);
  Step& into = a->steps[any_of(random, a->steps.size())];
  const Step& from = b->steps[any_of(random, b->steps.size())];
  if (a->steps.size() < mutations.max_steps && random.chance(50)) {
    a->steps.push_back(from);
    return print_to_fit(*a, max_size);
  }
  if (random.chance(50)) into.config = from.config;
  for (const Request& request : from.requests) {
    if (into.requests.size() >= max_requests) break;
    if (random.chance(50)) properties::insert_request(into, any_of(random, into.requests.size() + 1), request);
  }
  properties::put_in_order(into);
  return print_to_fit(*a, max_size);
}

}  // namespace fuzz
