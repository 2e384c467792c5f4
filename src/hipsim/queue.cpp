#include "queue.hpp"

#include "runtime.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace hipsim {
namespace {

std::uint64_t sum_of(const void* at, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(at);
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;
  return sum;
}

const Copy* copy_of(const Op& op) { return std::get_if<Copy>(op.payload.get()); }

/// On the stack that is here, which the host has used as deep before, and will again.
void run_host_function(const HostFunction& function) {
  constexpr std::size_t frames = std::size_t{64} << 10;
  char here = 0;
  void* const below = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(&here) - frames);
  watch::forget(below, frames);
  function.function(function.data);
  watch::forget(below, frames);
}

bool overlap(const void* a, std::size_t a_size, const void* b, std::size_t b_size) {
  const auto a_at = reinterpret_cast<std::uintptr_t>(a);
  const auto b_at = reinterpret_cast<std::uintptr_t>(b);
  return a_at < b_at + b_size && b_at < a_at + a_size;
}

/// Hides the target of a copy on the host from the host, or shows it again, unless it is gone. From the first whole
/// granule of AddressSanitizer on: one whose first bytes stay open looks like one at the end of what is there.
void change_target(const Copy& copy, void (*change)(const void*, std::size_t)) {
  if (watch::is_gone(copy.to, copy.size)) return;
  const std::size_t open = -reinterpret_cast<std::uintptr_t>(copy.to) % watch::granule;
  if (copy.size > open) change(static_cast<const char*>(copy.to) + open, copy.size - open);
}

bool touches(const Payload& payload, const void* at, std::size_t size) {
  if (const auto* copy = std::get_if<Copy>(&payload))
    return overlap(copy->to, copy->size, at, size) || overlap(copy->from, copy->size, at, size);
  if (const auto* set = std::get_if<Set>(&payload)) return overlap(set->to, set->size, at, size);
  if (const auto* kernel = std::get_if<std::unique_ptr<KernelLaunch>>(&payload))
    return (*kernel)->work.points_into((*kernel)->work.call, at, size);
  return false;
}

/// What a copy finds at its ends when it runs at last; false when it cannot be made.
bool check_host_ends(const Op& op, const Copy& copy) {
  const bool is_source_gone = copy.from_where == Where::pageable && watch::is_gone(copy.from, copy.size);
  const bool is_target_gone = copy.to_where == Where::pageable && watch::is_gone(copy.to, copy.size);
  if (is_source_gone || is_target_gone) {
    report(Report::freed_host_memory, std::string{"the "} + (is_source_gone ? "source" : "target") + " of the " +
                                          std::to_string(copy.size) + "-byte copy queued at " + text_of(op.place) +
                                          " was freed before the copy ran");
    return false;
  }
  if (op.knows_source && sum_of(copy.from, copy.size) != op.source_sum)
    report(Report::source_changed, "the source of the " + std::to_string(copy.size) + "-byte copy queued at " +
                                       text_of(op.place) + " was rewritten before the copy ran");
  return true;
}

void count(const Payload& payload) {
  Counters& counted = runtime().counted;
  if (std::holds_alternative<std::unique_ptr<KernelLaunch>>(payload)) ++counted.launches;
  if (const auto* set = std::get_if<Set>(&payload)) counted.memset_bytes += static_cast<std::int64_t>(set->size);
  const auto* copy = std::get_if<Copy>(&payload);
  if (copy == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(copy->size);
  const bool to_device = copy->to_where == Where::device;
  if (copy->from_where == Where::device)
    (to_device ? counted.device_to_device_bytes : counted.device_to_host_bytes) += bytes;
  else
    (to_device ? counted.host_to_device_bytes : counted.host_to_host_bytes) += bytes;
}

}  // namespace

std::string text_of(const Payload& payload) {
  if (const auto* kernel = std::get_if<std::unique_ptr<KernelLaunch>>(&payload))
    return std::string{"kernel "} + (*kernel)->name;
  if (const auto* copy = std::get_if<Copy>(&payload)) return "a copy of " + std::to_string(copy->size) + " bytes";
  if (const auto* set = std::get_if<Set>(&payload)) return "a set of " + std::to_string(set->size) + " bytes";
  return std::holds_alternative<HostFunction>(payload) ? "a host function" : "a marker";
}

Op::~Op() {
  if (const auto* copy = hides_target ? copy_of(*this) : nullptr) change_target(*copy, watch::unpoison);
}

void Queue::add(const OpPtr& op) {
  if (const Copy* copy = copy_of(*op)) {
    // A source that others are still to write has no content yet to be kept.
    if (copy->from_where == Where::pageable && !watch::is_poisoned(copy->from, copy->size)) {
      op->source_sum = sum_of(copy->from, copy->size);
      op->knows_source = true;
    }
    // Whoever reads the target before it is there reads poison.
    const bool is_late = copy->to_where != Where::device && runtime().config.mode == Mode::lazy;
    if (is_late && watch::has_address_sanitizer() && !watch::is_gone(copy->to, copy->size)) {
      op->hides_target = true;
      change_target(*copy, watch::poison);
    }
  }
  count(*op->payload);
  op->number = ++num_queued_;
  watch::release(&op->queued);
  pending_.push_back(op);
}

/// While work runs nothing is hidden from it: what is queued before a copy may well read what the copy will overwrite.
class Queue::TargetsInSight {
 public:
  explicit TargetsInSight(const Queue& queue) : queue_(queue) { for_each(watch::unpoison); }
  ~TargetsInSight() { for_each(watch::poison); }
  TargetsInSight(const TargetsInSight&) = delete;
  TargetsInSight& operator=(const TargetsInSight&) = delete;

 private:
  void for_each(void (*change)(const void*, std::size_t)) const {
    if (!watch::has_address_sanitizer()) return;
    for (const OpPtr& op : queue_.pending_)
      if (const Copy* copy = op->hides_target ? copy_of(*op) : nullptr) change_target(*copy, change);
  }
  const Queue& queue_;
};

void Queue::mark_needed(const OpPtr& target) {
  for (const OpPtr& op : pending_) op->is_needed = false;
  target->is_needed = true;
  // Nothing waits for what was queued later, so that one pass from the back finds all.
  for (auto op = pending_.rbegin(); op != pending_.rend(); ++op) {
    if (!(*op)->is_needed || (*op)->is_done) continue;
    for (const OpPtr& before : (*op)->waits_for) before->is_needed = true;
  }
}

void Queue::sweep() {
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), [](const OpPtr& op) { return op->is_done; }),
                 pending_.end());
}

bool Queue::has_kernel() const {
  return std::any_of(pending_.begin(), pending_.end(), [](const OpPtr& op) {
    return std::holds_alternative<std::unique_ptr<KernelLaunch>>(*op->payload);
  });
}

void Queue::run_until(const OpPtr& target) {
  if (target == nullptr || target->is_done) return;
  Runtime& sim = runtime();
  mark_needed(target);
  std::optional<DeviceAccess> access;
  if (has_kernel()) access.emplace();
  const TargetsInSight targets{*this};
  const bool is_plain = sim.config.seed == 0;
  if (is_plain) {
    // By index: a host function may not queue anything, but `pending_` is a member that others grow.
    for (std::size_t i = 0; i < pending_.size() && !target->is_done; ++i)
      if (pending_[i]->is_needed && !pending_[i]->is_done) run(*pending_[i]);
    return sweep();
  }
  const bool only_needed = sim.random.below(2) == 0;
  std::vector<OpPtr> ready;
  while (!target->is_done) {
    ready.clear();
    for (const OpPtr& op : pending_) {
      const bool waits =
          std::any_of(op->waits_for.begin(), op->waits_for.end(), [](const OpPtr& before) { return !before->is_done; });
      if (!op->is_done && !waits && (op->is_needed || !only_needed)) ready.push_back(op);
    }
    run(*ready[sim.random.below(ready.size())]);
  }
  sweep();
}

void Queue::run_all() {
  while (!pending_.empty()) run_until(pending_.back());
}

void Queue::run_one_towards(const OpPtr& target) {
  if (target == nullptr || target->is_done) return;
  mark_needed(target);
  std::optional<DeviceAccess> access;
  if (has_kernel()) access.emplace();
  const TargetsInSight targets{*this};
  for (const OpPtr& op : pending_) {
    if (!op->is_needed || op->is_done) continue;
    run(*op);
    break;
  }
  sweep();
}

void Queue::drop() {
  // One by one: a long chain that let go of itself would need a stack as long.
  for (const OpPtr& op : pending_) op->waits_for.clear();
  pending_.clear();
}

/// An operation from its first step to its last, whatever happens in between: a host function may throw.
class Queue::Running {
 public:
  Running(Queue& queue, Op& op) : queue_(queue), op_(op), host_(watch::current_strand()) {
    Runtime& sim = runtime();
    sim.is_running = true;
    sim.host_strand = host_;
    watch::become(op.strand ? op.strand->strand : host_);
    watch::acquire(&op.queued);
    for (const OpPtr& before : op.waits_for) watch::acquire(&before->done);
  }
  ~Running() {
    op_.is_done = true;
    op_.hides_target = false;
    op_.done_at = ++queue_.now_;
    op_.waits_for.clear();
    watch::release(&op_.done);
    watch::release(&queue_.any_done_);
    watch::become(host_);
    runtime().is_running = false;
    runtime().inside = nullptr;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Queue& queue_;
  Op& op_;
  watch::Strand host_;
};

void Queue::run(Op& op) {
  const Running running{*this, op};
  // Behind a kernel that was reported nothing runs any more.
  if (!runtime().is_broken && !op.is_void) run_payload(op);
}

void Queue::run_payload(Op& op) {
  Runtime& sim = runtime();
  const Payload& payload = *op.payload;
  if (const auto* kernel = std::get_if<std::unique_ptr<KernelLaunch>>(&payload)) {
    sim.inside = (*kernel)->name;
    if (!run_kernel(**kernel, watch::current_strand())) sim.is_broken = true;
  } else if (const auto* copy = std::get_if<Copy>(&payload)) {
    run_copy(op, *copy);
  } else if (const auto* set = std::get_if<Set>(&payload)) {
    const AllocationAccess to{set->to};
    std::memset(set->to, set->value, set->size);
  } else if (const auto* function = std::get_if<HostFunction>(&payload)) {
    const HostAccess access;
    sim.inside = "a host function";
    run_host_function(*function);
    forget_sources(nullptr, 0);
  }
}

void Queue::run_copy(Op& op, const Copy& copy) {
  if (!check_host_ends(op, copy)) return;
  const AllocationAccess from{copy.from};
  const AllocationAccess to{copy.to};
  std::memcpy(copy.to, copy.from, copy.size);
  if (copy.to_where != Where::device) forget_sources(copy.to, copy.size);
}

/// What is queued has written the host's memory, all of it for a size of 0: copies that read it find other content than
/// when they were queued, and rightly so.
void Queue::forget_sources(const void* at, std::size_t size) {
  for (const OpPtr& op : pending_) {
    const Copy* const copy = op->knows_source ? copy_of(*op) : nullptr;
    if (copy != nullptr && (size == 0 || overlap(copy->from, copy->size, at, size))) op->knows_source = false;
  }
}

const Op* Queue::void_users(const void* at, std::size_t size) {
  const Op* first = nullptr;
  for (const OpPtr& op : pending_) {
    if (op->is_done || op->is_void || !touches(*op->payload, at, size)) continue;
    op->is_void = true;
    if (first == nullptr) first = op.get();
  }
  return first;
}

}  // namespace hipsim
