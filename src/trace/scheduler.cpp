#include "trace/scheduler.hpp"

#include "attn/checked.hpp"
#include "attn/reorder.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace trace {
namespace {

/// Longest time a trace's clock shows: 146 years, and a step more still fits int64.
constexpr std::int64_t clock_limit_ns = std::int64_t{1} << 62;
constexpr std::int64_t ns_per_us = 1000;
constexpr std::int32_t step_base_limit_us = 10'000'000;
constexpr std::int32_t step_token_limit_ns = 1'000'000;

std::string out_of_range(const char* option, std::int64_t value, std::int64_t least, std::int64_t most) {
  return std::string(option) + " is " + std::to_string(value) + ", not in " + std::to_string(least) + " to " +
         std::to_string(most);
}

struct Range {
  const char* option;
  std::int64_t value;
  std::int64_t least;
  std::int64_t most;
};

std::optional<std::string> check_ranges(const SchedulerOptions& o) {
  const Range ranges[] = {
      {"max_num_batched_tokens", o.max_num_batched_tokens, 1, attn::int32_limit},
      {"max_num_seqs", o.max_num_seqs, 1, batchtext::max_requests},
      {"max_model_len", o.max_model_len, 2, attn::int32_limit},
      {"long_prefill_token_threshold", o.long_prefill_token_threshold, 0, attn::int32_limit},
      {"block_size", o.block_size, 1, attn::int32_limit},
      // Two tokens are the shortest request; the product fits so that no sum over a step's lengths leaves int32.
      {"num_gpu_blocks", o.num_gpu_blocks, attn::ceil_div(2, std::max(o.block_size, 1)),
       attn::int32_limit / std::max(o.block_size, 1)},
      {"num_speculative_tokens", o.num_speculative_tokens, 0, o.max_num_batched_tokens - 1},
      {"step_base_us", o.step_base_us, 0, step_base_limit_us},
      {"step_token_ns", o.step_token_ns, 0, step_token_limit_ns},
      {"workspace_tokens", o.workspace_tokens, 0, attn::int32_limit},
      {"window_left", o.window_left.value_or(0), 0, attn::int32_limit},
  };
  for (const Range& range : ranges)
    if (range.value < range.least || range.value > range.most)
      return out_of_range(range.option, range.value, range.least, range.most);
  return std::nullopt;
}

std::optional<std::string> check_rates(const SchedulerOptions& o) {
  // Written so that a NaN is out of range too.
  const auto is_rate = [](double rate) { return rate >= 0 && rate <= 1; };
  if (!is_rate(o.draft_acceptance_rate)) return "draft_acceptance_rate is not in 0 to 1";
  if (!is_rate(o.prefix_hit_rate)) return "prefix_hit_rate is not in 0 to 1";
  if (!is_rate(o.prefix_hit_fraction)) return "prefix_hit_fraction is not in 0 to 1";
  return std::nullopt;
}

std::int32_t longest_len(const SchedulerOptions& o) {
  return std::min(o.max_model_len, o.num_gpu_blocks * o.block_size);
}

std::optional<std::string> check(const SchedulerOptions& o) {
  if (auto wrong = check_ranges(o)) return wrong;
  if (auto wrong = check_rates(o)) return wrong;
  if (o.max_num_batched_tokens < o.max_num_seqs)
    return "max_num_batched_tokens is " + std::to_string(o.max_num_batched_tokens) + ", below max_num_seqs, " +
           std::to_string(o.max_num_seqs);
  if (o.enable_chunked_prefill) return std::nullopt;
  if (o.long_prefill_token_threshold > 0) return "long_prefill_token_threshold needs chunked prefill";
  // A request that was preempted computes its whole length in one go.
  if (o.max_num_batched_tokens < longest_len(o))
    return "without chunked prefill max_num_batched_tokens, " + std::to_string(o.max_num_batched_tokens) +
           ", has to reach the longest length, " + std::to_string(longest_len(o)) + ": lower max_model_len or raise it";
  return std::nullopt;
}

/// Tokens of the prompt that are in the cache when the request comes: whole blocks, never all of the prompt, because
/// the last token's output is what the first step is for.
std::int32_t draw_prefix_hit(const SchedulerOptions& o, std::int32_t prompt_tokens, Random& random) {
  if (!random.chance(o.prefix_hit_rate)) return 0;
  const auto longest = static_cast<std::int64_t>(o.prefix_hit_fraction * prompt_tokens);
  const std::int64_t drawn = std::min<std::int64_t>(random.below(longest + 1), prompt_tokens - 1);
  return static_cast<std::int32_t>(drawn / o.block_size * o.block_size);
}

}  // namespace

tl::expected<Scheduler, std::string> Scheduler::make(const RequestTrace& trace, const SchedulerOptions& options) {
  if (auto wrong = check(options)) return tl::unexpected(std::move(*wrong));
  return Scheduler(trace, options);
}

Scheduler::Scheduler(const RequestTrace& trace, const SchedulerOptions& options)
    : options_(options), max_len_(longest_len(options)), num_free_blocks_(options.num_gpu_blocks) {
  step_.config = attn::Config{1 + options.num_speculative_tokens, options.workspace_tokens, options.window_left,
                              options.chunk_policy};
  if (options.async_scheduling) step_.seq_lens_upper_bound.source = batchtext::Lens::raw;
  requests_.reserve(trace.requests.size());
  for (std::size_t i = 0; i < trace.requests.size(); ++i)
    admit_to_queue(trace.requests[i], static_cast<std::int32_t>(i));
}

void Scheduler::admit_to_queue(const Request& request, std::int32_t trace_index) {
  if (request.prompt_tokens >= max_len_) {
    ++counters_.num_rejected;
    return;
  }
  State added{request, trace_index, Random(options_.seed, static_cast<std::uint64_t>(trace_index))};
  const std::int32_t room = max_len_ - request.prompt_tokens;
  if (request.output_tokens > room) {
    ++counters_.num_truncated;
    added.request.output_tokens = room;
  }
  added.prefix_hit_tokens = draw_prefix_hit(options_, request.prompt_tokens, added.random);
  requests_.push_back(added);
}

std::int64_t Scheduler::num_waiting() const { return std::ssize(preempted_) + num_arrived_ - next_waiting_; }

const batchtext::Step* Scheduler::next() {
  complete_step();
  wait_for_arrival();
  if (running_.empty() && num_waiting() == 0) return nullptr;
  schedule();
  update_persistent_batch();
  // The first running request can have every block there is, and the longest request fits those.
  if (slots_.empty()) throw std::logic_error("the scheduler stands still");
  reorder_persistent_batch();
  fill_step();
  ++counters_.num_steps;
  return &step_;
}

// ---- The end of a step

void Scheduler::complete_step() {
  if (step_tokens_ == 0) return;
  const std::int64_t step_ns = options_.step_base_us * ns_per_us + step_tokens_ * options_.step_token_ns;
  clock_ns_ = clock_ns_ > clock_limit_ns - step_ns ? clock_limit_ns : clock_ns_ + step_ns;
  step_tokens_ = 0;

  std::size_t num_left = 0;
  for (const Id id : running_) {
    State& request = state(id);
    complete_request(request);
    request.num_scheduled = 0;
    if (request.num_generated < request.request.output_tokens) {
      running_[num_left++] = id;
      continue;
    }
    free_blocks(request);
    ++counters_.num_completed;
  }
  running_.resize(num_left);
}

void Scheduler::complete_request(State& request) {
  // A result is late by one step; whoever missed a step has all of his.
  request.num_unverified = 0;
  if (request.num_scheduled == 0) return;
  request.num_drafts = 0;
  const std::int32_t num_drafts = request.num_scheduled_drafts();
  request.num_computed += request.num_scheduled;
  // The middle of a prompt: nothing is sampled.
  if (request.num_computed < request.num_tokens()) return;

  std::int32_t num_accepted = 0;
  while (num_accepted < num_drafts && request.random.chance(options_.draft_acceptance_rate)) ++num_accepted;
  request.num_unverified = num_drafts - num_accepted;
  request.num_computed -= request.num_unverified;
  const std::int32_t missing = request.request.output_tokens - request.num_generated;
  const std::int32_t num_new = std::min(1 + num_accepted, missing);
  request.num_generated += num_new;
  request.num_drafts = options_.num_speculative_tokens;
  counters_.num_draft_tokens += num_drafts;
  counters_.num_accepted_tokens += num_accepted;
  counters_.num_output_tokens += num_new;
}

void Scheduler::wait_for_arrival() {
  const auto end = static_cast<Id>(requests_.size());
  const bool is_idle = running_.empty() && num_waiting() == 0;
  if (is_idle && num_arrived_ < end) clock_ns_ = std::max(clock_ns_, state(num_arrived_).request.arrival_ns);
  while (num_arrived_ < end && state(num_arrived_).request.arrival_ns <= clock_ns_) ++num_arrived_;
}

// ---- Who takes part in a step

void Scheduler::schedule() {
  std::int32_t budget = options_.max_num_batched_tokens;
  if (schedule_running(budget)) schedule_waiting(budget);
}

/// False when somebody was preempted.
bool Scheduler::schedule_running(std::int32_t& budget) {
  const std::int64_t num_preemptions = counters_.num_preemptions;
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    const Id id = running_[i];
    State& request = state(id);
    const std::int32_t lacking = request.num_tokens() - request.num_computed + request.num_drafts;
    // Drafts stop before the longest length, which only a sampled token may reach.
    const std::int32_t num_new = std::min(cut_piece(lacking, budget), max_len_ - 1 - request.num_computed);
    if (!reserve_or_preempt(id, request.num_computed + num_new)) break;
    request.num_scheduled = num_new;
    budget -= num_new;
  }
  return counters_.num_preemptions == num_preemptions;
}

void Scheduler::schedule_waiting(std::int32_t budget) {
  while (budget > 0 && std::ssize(running_) < options_.max_num_seqs && num_waiting() > 0) {
    const Id id = waiting_head();
    State& request = state(id);
    // A request that was preempted finds the prefix again: it belongs to others too.
    const std::int32_t lacking = request.num_tokens() - request.prefix_hit_tokens;
    if (!options_.enable_chunked_prefill && lacking > budget) return;
    const std::int32_t num_new = cut_piece(lacking, budget);
    if (!reserve_blocks(request, request.prefix_hit_tokens + num_new)) return;
    pop_waiting();
    running_.push_back(id);
    request.num_computed = request.prefix_hit_tokens;
    request.num_scheduled = num_new;
    budget -= num_new;
    counters_.num_prefix_hit_tokens += request.prefix_hit_tokens;
  }
}

std::int32_t Scheduler::cut_piece(std::int32_t num_tokens, std::int32_t budget) const {
  const std::int32_t threshold = options_.long_prefill_token_threshold;
  const std::int32_t longest = threshold > 0 ? std::min(threshold, budget) : budget;
  return std::min(num_tokens, longest);
}

/// Makes the request's blocks hold `num_tokens`. False, and nothing taken, when there are too few.
bool Scheduler::reserve_blocks(State& request, std::int32_t num_tokens) {
  const auto needed = static_cast<std::int32_t>(attn::ceil_div(num_tokens, options_.block_size));
  const std::int32_t num_new = std::max(needed - request.num_blocks, 0);
  if (num_new > num_free_blocks_) return false;
  num_free_blocks_ -= num_new;
  request.num_blocks += num_new;
  return true;
}

/// Frees the blocks of the last running requests until this one has its own. False when it was the last itself.
bool Scheduler::reserve_or_preempt(Id id, std::int32_t num_tokens) {
  // The drafter writes its tokens' keys and values before the step after this one is scheduled.
  const std::int64_t with_lookahead = std::int64_t{num_tokens} + options_.num_speculative_tokens;
  const auto wanted = static_cast<std::int32_t>(std::min<std::int64_t>(with_lookahead, max_len_));
  while (!reserve_blocks(state(id), wanted)) {
    const bool is_last = running_.back() == id;
    preempt_last();
    if (is_last) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  const Id id = running_.back();
  State& request = state(id);
  ++counters_.num_preemptions;
  counters_.num_preempted_tokens += request.num_computed;
  free_blocks(request);
  request.num_computed = 0;
  request.num_drafts = 0;
  request.num_unverified = 0;
  running_.pop_back();
  preempted_.push_back(id);
}

void Scheduler::free_blocks(State& request) {
  num_free_blocks_ += request.num_blocks;
  request.num_blocks = 0;
}

Scheduler::Id Scheduler::waiting_head() const { return preempted_.empty() ? next_waiting_ : preempted_.back(); }

void Scheduler::pop_waiting() {
  if (preempted_.empty())
    ++next_waiting_;
  else
    preempted_.pop_back();
}

// ---- The persistent batch, whose order lives on from step to step as in vLLM's model runner

/// Takes out who is not in this step, and puts newcomers into the gaps, lowest first, or behind the last.
void Scheduler::update_persistent_batch() {
  empty_slots_.clear();
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    State& request = state(slots_[slot]);
    if (request.num_scheduled > 0) continue;
    request.slot = nowhere;
    slots_[slot] = nowhere;
    empty_slots_.push_back(slot);
  }
  std::size_t num_filled = 0;
  for (const Id id : running_) {
    State& request = state(id);
    if (request.num_scheduled == 0 || request.slot != nowhere) continue;
    if (num_filled == empty_slots_.size()) {
      request.slot = static_cast<std::int32_t>(slots_.size());
      slots_.push_back(id);
      continue;
    }
    const std::size_t slot = empty_slots_[num_filled++];
    request.slot = static_cast<std::int32_t>(slot);
    slots_[slot] = id;
  }
  condense_persistent_batch(num_filled);
}

/// Closes the gaps that are left with the last requests.
void Scheduler::condense_persistent_batch(std::size_t first_empty) {
  const auto drop_empty_tail = [&] {
    while (!slots_.empty() && slots_.back() == nowhere) slots_.pop_back();
  };
  drop_empty_tail();
  for (std::size_t i = first_empty; i < empty_slots_.size() && empty_slots_[i] < slots_.size(); ++i) {
    slots_[empty_slots_[i]] = slots_.back();
    slots_.pop_back();
    drop_empty_tail();
  }
}

// A request that still computes its prompt stands after the decodes for reorder_batch, and one without computed tokens
// is a prefill, however short, while the splitter goes by rows and calls one of at most decode_threshold tokens no
// prefill. The order never is Error::unordered for all that: every row of the prefill region starts with nothing
// computed and so has no context, and only context behind the first prefill is refused. A short row at the head of the
// region counts as a decode when there is no extend, and as an extend without context otherwise; one behind a long
// prefill is a prefill. The first piece of a longer prompt has as many tokens after the step as queries and is a
// prefill as any. Bounds change nothing: those of decodes are not read, those of the others are exact.
void Scheduler::reorder_persistent_batch() {
  const std::size_t num_reqs = slots_.size();
  scheduled_.resize(num_reqs);
  computed_.resize(num_reqs);
  prompt_.resize(num_reqs);
  order_.resize(num_reqs);
  for (std::size_t slot = 0; slot < num_reqs; ++slot) {
    scheduled_[slot] = state(slots_[slot]).num_scheduled;
    computed_[slot] = state(slots_[slot]).num_computed;
    prompt_[slot] = state(slots_[slot]).request.prompt_tokens;
  }
  // It refuses wrong sizes and negative counts only; `value` throws should a fault of ours make some.
  const bool is_moved =
      attn::reorder_batch(scheduled_, computed_, prompt_, step_.config.decode_threshold, order_).value();
  if (is_moved) {
    reordered_.resize(num_reqs);
    for (std::size_t slot = 0; slot < num_reqs; ++slot)
      reordered_[slot] = slots_[static_cast<std::size_t>(order_[slot])];
    slots_.swap(reordered_);
  }
  for (std::size_t slot = 0; slot < num_reqs; ++slot) state(slots_[slot]).slot = static_cast<std::int32_t>(slot);
}

void Scheduler::fill_step() {
  const std::size_t num_reqs = slots_.size();
  rows_.resize(num_reqs);
  step_.requests.resize(num_reqs);
  auto& bounds = step_.seq_lens_upper_bound.values;
  if (options_.async_scheduling) bounds.resize(num_reqs);
  for (std::size_t i = 0; i < num_reqs; ++i) {
    const State& request = state(slots_[i]);
    const std::int32_t seq_len = request.num_computed + request.num_scheduled;
    rows_[i] = Row{request.trace_index, request.num_computed, request.num_scheduled_drafts()};
    step_.requests[i] = batchtext::Request{request.num_scheduled, seq_len};
    step_tokens_ += request.num_scheduled;
    // No bound above the longest length: exact lengths stay below it.
    if (options_.async_scheduling) bounds[i] = seq_len + std::min(request.num_unverified, max_len_ - seq_len);
  }
}

}  // namespace trace
