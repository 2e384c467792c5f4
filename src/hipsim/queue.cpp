#include "queue.hpp"

#include "runtime.hpp"

#include <algorithm>
#include <cstring>

namespace hipsim {
namespace {

std::uint64_t sum_of(const void* at, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(at);
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;
  return sum;
}

const Copy* copy_of(const Op& op) { return std::get_if<Copy>(op.payload.get()); }

bool overlap(const void* a, std::size_t a_size, const void* b, std::size_t b_size) {
  const auto a_at = reinterpret_cast<std::uintptr_t>(a);
  const auto b_at = reinterpret_cast<std::uintptr_t>(b);
  return a_at < b_at + b_size && b_at < a_at + a_size;
}

/// Whether a word of the kernel's arguments leads into the range.
bool has_argument_in(const KernelLaunch& launch, const void* at, std::size_t size) {
  const auto* bytes = static_cast<const char*>(launch.work.call);
  for (std::size_t i = 0; i + sizeof(void*) <= launch.work.size; i += sizeof(void*)) {
    const void* argument = nullptr;
    std::memcpy(&argument, bytes + i, sizeof argument);
    if (overlap(argument, 1, at, size)) return true;
  }
  return false;
}

bool touches(const Payload& payload, const void* at, std::size_t size) {
  if (const auto* copy = std::get_if<Copy>(&payload))
    return overlap(copy->to, copy->size, at, size) || overlap(copy->from, copy->size, at, size);
  if (const auto* set = std::get_if<Set>(&payload)) return overlap(set->to, set->size, at, size);
  if (const auto* kernel = std::get_if<std::unique_ptr<KernelLaunch>>(&payload))
    return has_argument_in(**kernel, at, size);
  return false;
}

/// What a copy finds at its ends when it runs at last; false when it cannot be made.
bool check_host_ends(const Op& op, const Copy& copy, std::uint64_t host_writes) {
  const bool is_source_gone = copy.from_pageable && watch::is_poisoned(copy.from, copy.size);
  const bool is_target_gone = copy.to_host && watch::is_gone(copy.to, copy.size);
  if (is_source_gone || is_target_gone) {
    report(Report::freed_host_memory, std::string{"the "} + (is_source_gone ? "source" : "target") + " of the " +
                                          std::to_string(copy.size) + "-byte copy queued at " + text_of(op.place) +
                                          " was freed before the copy ran");
    return false;
  }
  // A host function or a copy to the host in between may have written the source in order.
  if (copy.from_pageable && host_writes == op.host_writes && sum_of(copy.from, copy.size) != op.source_sum)
    report(Report::source_changed, "the source of the " + std::to_string(copy.size) + "-byte copy queued at " +
                                       text_of(op.place) + " was rewritten before the copy ran");
  return true;
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
  const auto* copy = hides_target ? copy_of(*this) : nullptr;
  if (copy != nullptr && !watch::is_gone(copy->to, copy->size)) watch::unpoison(copy->to, copy->size);
}

void Queue::add(const OpPtr& op) {
  if (const Copy* copy = copy_of(*op)) {
    // A source that is out of bounds already: the copy says so when it runs.
    if (copy->from_pageable && !watch::is_poisoned(copy->from, copy->size)) {
      op->source_sum = sum_of(copy->from, copy->size);
      op->host_writes = host_writes_;
    } else {
      op->host_writes = host_writes_ - 1;
    }
    // Whoever reads the target before it is there reads poison.
    if (copy->to_host && runtime().config.mode == Mode::lazy && !watch::is_poisoned(copy->to, copy->size)) {
      op->hides_target = watch::has_address_sanitizer();
      watch::poison(copy->to, copy->size);
    }
  }
  op->number = ++num_queued_;
  watch::release(&op->queued);
  pending_.push_back(op);
}

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
  const DeviceAccess access{has_kernel()};
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
  const DeviceAccess access{has_kernel()};
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

void Queue::run(Op& op) {
  Runtime& sim = runtime();
  const watch::Strand host = watch::current_strand();
  const watch::Strand strand = op.strand ? op.strand->strand : host;
  sim.host_strand = host;
  watch::become(strand);
  watch::acquire(&op.queued);
  for (const OpPtr& before : op.waits_for) watch::acquire(&before->done);
  const Payload& payload = *op.payload;
  // Behind a kernel that was reported nothing runs any more.
  if (sim.is_broken) {
  } else if (const auto* kernel = std::get_if<std::unique_ptr<KernelLaunch>>(&payload)) {
    sim.inside = (*kernel)->name;
    if (!run_kernel(**kernel, strand)) sim.is_broken = true;
    sim.inside = nullptr;
  } else if (const auto* copy = std::get_if<Copy>(&payload)) {
    if (check_host_ends(op, *copy, host_writes_)) {
      const AllocationAccess from{copy->from};
      const AllocationAccess to{copy->to};
      if (std::exchange(op.hides_target, false)) watch::unpoison(copy->to, copy->size);
      std::memcpy(copy->to, copy->from, copy->size);
    }
    if (copy->to_host) ++host_writes_;
  } else if (const auto* set = std::get_if<Set>(&payload)) {
    const AllocationAccess to{set->to};
    std::memset(set->to, set->value, set->size);
  } else if (const auto* function = std::get_if<HostFunction>(&payload)) {
    const HostAccess access;
    sim.inside = "a host function";
    function->function(function->data);
    sim.inside = nullptr;
    ++host_writes_;
  }
  op.is_done = true;
  op.done_at = ++now_;
  op.waits_for.clear();
  watch::release(&op.done);
  watch::release(&any_done_);
  watch::become(host);
}

const Op* Queue::find_user(const void* at, std::size_t size) const {
  for (const OpPtr& op : pending_)
    if (!op->is_done && touches(*op->payload, at, size)) return op.get();
  return nullptr;
}

}  // namespace hipsim
