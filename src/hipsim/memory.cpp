#include "runtime.hpp"
#include "streams.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace hipsim {
namespace {

/// What the card guarantees; also a multiple of everything a kernel may load at once.
constexpr std::size_t alignment = 256;
/// Freed allocations that messages still know.
constexpr std::size_t max_freed = 64;

int access_depth = 0;

void open_device(bool open) {
  if (!watch::has_address_sanitizer()) return;
  for (const auto& [at, allocation] : runtime().allocations) {
    if (allocation.is_pinned) continue;
    if (open)
      watch::unpoison(allocation.pointer, allocation.size);
    else
      watch::poison(allocation.pointer, allocation.size);
  }
}

std::string size_of(const Allocation& allocation) {
  return std::to_string(allocation.size) + " bytes of " + (allocation.is_pinned ? "pinned" : "device") +
         " memory made at " + text_of(allocation.place);
}

/// The last one that was freed at this address.
const Allocation* find_freed(const void* pointer) {
  const Runtime& sim = runtime();
  for (std::size_t back = 1; back <= sim.freed.size(); ++back) {
    const Allocation& allocation = sim.freed[(sim.num_freed - back) % max_freed];
    if (allocation.pointer == pointer) return &allocation;
  }
  return nullptr;
}

hipError_t allocate(ApiCall& call, void** pointer, std::size_t size, bool is_pinned, const Place& place) {
  Runtime& sim = runtime();
  if (pointer == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  *pointer = nullptr;
  // AMD documents null and success; CUDA's driver refuses.
  if (size == 0) return is_portable() ? call.fail(hipErrorInvalidValue, "0 bytes asked for") : hipSuccess;
  const std::size_t left = sim.config.device_memory_bytes - std::min(sim.device_bytes, sim.config.device_memory_bytes);
  if (size > (is_pinned ? sim.config.device_memory_bytes : left))
    return call.fail(hipErrorOutOfMemory, std::to_string(size) + " bytes asked for, the device has " +
                                              std::to_string(sim.config.device_memory_bytes) + " in all");
  void* made = nullptr;
  // Of exactly this size, so that AddressSanitizer guards both ends.
  if (posix_memalign(&made, alignment, size) != 0 || made == nullptr)
    return call.fail(hipErrorOutOfMemory, std::to_string(size) + " bytes asked for, the host has none left");
  fill_with_junk(made, size, ++sim.num_fresh);
  sim.allocations.emplace(reinterpret_cast<std::uintptr_t>(made), Allocation{made, size, is_pinned, place});
  sim.order_made.push_back(made);
  if (!is_pinned) sim.device_bytes += size;
  if (!is_pinned && access_depth == 0) watch::poison(made, size);
  ++sim.counted.allocations;
  *pointer = made;
  return hipSuccess;
}

/// Gives memory back, unless it is not there to be given.
hipError_t release(ApiCall& call, void* pointer, bool is_pinned, const Place& place) {
  if (pointer == nullptr) return hipSuccess;
  Runtime& sim = runtime();
  const auto found = sim.allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == sim.allocations.end()) {
    if (const Allocation* inside = find_allocation(pointer))
      return call.fail(hipErrorInvalidValue, "the pointer leads into the middle of " + size_of(*inside));
    if (const Allocation* freed = find_freed(pointer))
      return call.fail(hipErrorInvalidValue, "freed before: " + size_of(*freed));
    return call.fail(hipErrorInvalidValue, "the pointer is none that was allocated");
  }
  const Allocation allocation = found->second;
  if (allocation.is_pinned != is_pinned)
    return call.fail(hipErrorInvalidValue, std::string{"the wrong way to free "} + size_of(allocation));
  // AMD's free waits for the device; CUDA's does not promise to.
  if (!is_portable()) {
    ++sim.counted.synchronisations;
    sim.queue.run_all();
    sim.queue.wait_for_all();
  } else if (const Op* user = sim.queue.void_users(pointer, allocation.size)) {
    report(Report::free_while_queued, size_of(allocation) + " is freed at " + text_of(place) + ", and " +
                                          text_of(*user->payload) + " queued at " + text_of(user->place) + " uses it");
  }
  sim.allocations.erase(found);
  std::erase(sim.order_made, pointer);
  if (!is_pinned) sim.device_bytes -= allocation.size;
  if (sim.freed.size() < max_freed)
    sim.freed.push_back(allocation);
  else
    sim.freed[sim.num_freed % max_freed] = allocation;
  ++sim.num_freed;
  watch::unpoison(pointer, allocation.size);
  std::free(pointer);
  ++sim.counted.frees;
  return call.finish();
}

const char* name_of(hipMemcpyKind kind) {
  switch (kind) {
    case hipMemcpyHostToHost:
      return "hipMemcpyHostToHost";
    case hipMemcpyHostToDevice:
      return "hipMemcpyHostToDevice";
    case hipMemcpyDeviceToHost:
      return "hipMemcpyDeviceToHost";
    case hipMemcpyDeviceToDevice:
      return "hipMemcpyDeviceToDevice";
    case hipMemcpyDefault:
      return "hipMemcpyDefault";
  }
  return "an unknown kind of copy";
}

const char* name_of(Where where) {
  return where == Where::device ? "device memory" : where == Where::pinned ? "pinned memory" : "host memory";
}

/// Whether the range stays inside the allocation it begins in.
hipError_t check_range(ApiCall& call, const char* what, const void* at, std::size_t size) {
  const Allocation* const allocation = find_allocation(at);
  if (allocation == nullptr) return hipSuccess;
  const std::size_t left = static_cast<std::size_t>(static_cast<const char*>(allocation->pointer) + allocation->size -
                                                    static_cast<const char*>(at));
  if (size <= left) return hipSuccess;
  return call.fail(hipErrorInvalidValue, std::to_string(size) + " bytes of " + what + ", only " + std::to_string(left) +
                                             " are left of " + size_of(*allocation));
}

hipError_t check_kind(ApiCall& call, Where to, Where from, hipMemcpyKind kind) {
  if (kind == hipMemcpyDefault) return hipSuccess;
  const bool known = kind >= hipMemcpyHostToHost && kind < hipMemcpyDefault;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  // Pinned memory is the host's, and on AMD the device's as well.
  const auto fits = [](Where where, bool on_device) {
    return on_device == (where == Where::device) || (where == Where::pinned && !is_portable());
  };
  if (known && fits(from, from_device) && fits(to, to_device)) return hipSuccess;
  return call.fail(hipErrorInvalidMemcpyDirection,
                   std::string{name_of(kind)} + " from " + name_of(from) + " to " + name_of(to));
}

/// Whether the host's memory is there from end to end, as far as AddressSanitizer knows.
hipError_t check_presence(ApiCall& call, const char* what, const void* at, std::size_t size, Where where) {
  if (where != Where::pageable || !watch::is_gone(at, size)) return hipSuccess;
  return call.fail(hipErrorInvalidValue, std::string{what} + ", " + std::to_string(size) + " bytes, is not all there");
}

hipError_t queue_copy(ApiCall& call, void* to, const void* from, std::size_t size, hipMemcpyKind kind,
                      hipStream_t stream, const Place& place, OpPtr* queued) {
  if (size == 0) return hipSuccess;
  if (to == nullptr || from == nullptr)
    return call.fail(hipErrorInvalidValue, std::string{to == nullptr ? "the target" : "the source"} + " is null");
  const Where to_where = where_is(to);
  const Where from_where = where_is(from);
  if (check_kind(call, to_where, from_where, kind) != hipSuccess) return call.error();
  if (check_range(call, "the target", to, size) != hipSuccess) return call.error();
  if (check_range(call, "the source", from, size) != hipSuccess) return call.error();
  if (check_presence(call, "the target", to, size, to_where) != hipSuccess) return call.error();
  if (check_presence(call, "the source", from, size, from_where) != hipSuccess) return call.error();
  const Copy copy{to, from, size, to_where, from_where};
  return enqueue(call, stream, std::make_shared<const Payload>(copy), place, queued);
}

hipError_t queue_set(ApiCall& call, void* to, int value, std::size_t size, hipStream_t stream, const Place& place,
                     OpPtr* queued) {
  if (size == 0) return hipSuccess;
  if (to == nullptr) return call.fail(hipErrorInvalidValue, "the target is null");
  if (where_is(to) == Where::pageable) return call.fail(hipErrorInvalidValue, "the target is no memory of the device");
  if (check_range(call, "the target", to, size) != hipSuccess) return call.error();
  return enqueue(call, stream, std::make_shared<const Payload>(Set{to, value, size}), place, queued);
}

hipError_t wait(ApiCall& call, const OpPtr& queued) {
  runtime().queue.run_until(queued);
  if (queued) watch::acquire(&queued->done);
  return call.finish();
}

/// A copy or set without "Async" waits for what it has queued, unless that stays within device memory.
hipError_t finish(ApiCall& call, const OpPtr& queued) {
  if (queued) {
    const auto* const copy = std::get_if<Copy>(queued->payload.get());
    const auto* const set = std::get_if<Set>(queued->payload.get());
    const bool from_device = copy == nullptr || copy->from_where == Where::device;
    const Where to = copy != nullptr ? copy->to_where : where_is(set->to);
    if (from_device && to == Where::device) return call.finish();
  }
  ++runtime().counted.synchronisations;
  return wait(call, queued);
}

/// A copy with "Async" that has pageable memory at an end makes the host wait, or copy what it finds to where the
/// device can fetch it. AMD documents that it waits; CUDA may do either, but waits between two ends on the host.
hipError_t finish_async(ApiCall& call, const OpPtr& queued) {
  const auto* const copy = queued ? std::get_if<Copy>(queued->payload.get()) : nullptr;
  if (copy == nullptr || (copy->to_where != Where::pageable && copy->from_where != Where::pageable)) return hipSuccess;
  ++runtime().counted.pageable_copies;
  const bool within_host = copy->to_where != Where::device && copy->from_where != Where::device;
  return within_host || !is_portable() ? wait(call, queued) : hipSuccess;
}

template <class Handles>
void report_handles(const Handles& handles, const char* what) {
  for (const auto& handle : handles)
    report(Report::leak, std::string{what} + " made at " + text_of(handle->place) + " was not destroyed");
}

}  // namespace

const Allocation* find_allocation(const void* pointer) {
  const auto& allocations = runtime().allocations;
  auto after = allocations.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
  if (after == allocations.begin()) return nullptr;
  const Allocation& allocation = std::prev(after)->second;
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(pointer) - static_cast<const char*>(allocation.pointer));
  return offset < allocation.size ? &allocation : nullptr;
}

Where where_is(const void* pointer) {
  const Allocation* const allocation = find_allocation(pointer);
  if (allocation == nullptr) return Where::pageable;
  return allocation->is_pinned ? Where::pinned : Where::device;
}

DeviceAccess::DeviceAccess() {
  if (access_depth++ == 0) open_device(true);
}
DeviceAccess::~DeviceAccess() {
  if (--access_depth == 0) open_device(false);
}
AllocationAccess::AllocationAccess(const void* at) {
  if (access_depth > 0 || !watch::has_address_sanitizer() || where_is(at) != Where::device) return;
  opened_ = find_allocation(at);
  watch::unpoison(opened_->pointer, opened_->size);
}
AllocationAccess::~AllocationAccess() {
  if (opened_ != nullptr) watch::poison(opened_->pointer, opened_->size);
}
HostAccess::HostAccess() : depth_(std::exchange(access_depth, 0)) {
  if (depth_ > 0) open_device(false);
}
HostAccess::~HostAccess() {
  access_depth = depth_;
  if (depth_ > 0) open_device(true);
}

void free_all(bool report_leaks) {
  Runtime& sim = runtime();
  if (report_leaks) {
    for (const Allocation& allocation : live_allocations())
      report(Report::leak, size_of(allocation) + " was not freed");
    report_handles(sim.streams, "a stream");
    report_handles(sim.events, "an event");
    report_handles(sim.graphs, "a graph");
    report_handles(sim.execs, "an executable graph");
  }
  for (const auto& [at, allocation] : sim.allocations) {
    watch::unpoison(allocation.pointer, allocation.size);
    std::free(const_cast<void*>(allocation.pointer));
  }
  sim.allocations.clear();
  sim.order_made.clear();
  sim.device_bytes = 0;
  sim.events.clear();
  sim.graphs.clear();
  sim.execs.clear();
  sim.streams.clear();
  sim.null_stream.reset();
}

void fill_with_junk(void* at, std::size_t size, std::uint64_t number) {
  Random random;
  random.seed(runtime().config.seed * 0x2545f4914f6cdd1du + number);
  std::uint64_t word = random.next();
  auto* out = static_cast<unsigned char*>(at);
  // Words differ, so that a kernel that mixes them up does not get the right one by chance.
  for (; size >= sizeof word; size -= sizeof word, out += sizeof word) {
    std::memcpy(out, &word, sizeof word);
    word += 0x9e3779b97f4a7c15u;
  }
  std::memcpy(out, &word, size);
}

}  // namespace hipsim

using hipsim::ApiCall;
using hipsim::OpPtr;
using hipsim::Place;
using hipsim::runtime;

hipError_t hipMalloc(void** pointer, std::size_t size, Place place) {
  ApiCall call{"hipMalloc", place, ApiCall::not_while_capturing};
  return call.refused() ? call.error() : hipsim::allocate(call, pointer, size, false, place);
}

hipError_t hipFree(void* pointer, Place place) {
  ApiCall call{"hipFree", place, ApiCall::not_while_capturing};
  return call.refused() ? call.error() : hipsim::release(call, pointer, false, place);
}

hipError_t hipHostMalloc(void** pointer, std::size_t size, unsigned int flags, Place place) {
  ApiCall call{"hipHostMalloc", place, ApiCall::not_while_capturing};
  if (call.refused()) return call.error();
  constexpr unsigned int known = hipHostMallocPortable | hipHostMallocMapped | hipHostMallocWriteCombined;
  if ((flags & ~known) != 0) return call.fail(hipErrorInvalidValue, "unknown flags " + std::to_string(flags));
  return hipsim::allocate(call, pointer, size, true, place);
}

hipError_t hipHostFree(void* pointer, Place place) {
  ApiCall call{"hipHostFree", place, ApiCall::not_while_capturing};
  return call.refused() ? call.error() : hipsim::release(call, pointer, true, place);
}

hipError_t hipMallocManaged(void** pointer, std::size_t, unsigned int, Place place) {
  ApiCall call{"hipMallocManaged", place};
  if (call.refused()) return call.error();
  if (pointer != nullptr) *pointer = nullptr;
  return call.fail(hipErrorNotSupported, "there is no managed memory here: use hipMalloc and copies");
}

hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total, Place place) {
  ApiCall call{"hipMemGetInfo", place};
  if (call.refused()) return call.error();
  if (free == nullptr || total == nullptr) return call.fail(hipErrorInvalidValue, "a pointer to set is null");
  *total = runtime().config.device_memory_bytes;
  *free = *total - std::min(runtime().device_bytes, *total);
  return hipSuccess;
}

hipError_t hipMemcpy(void* to, const void* from, std::size_t size, hipMemcpyKind kind, Place place) {
  ApiCall call{"hipMemcpy", place, ApiCall::blocking};
  OpPtr queued;
  if (call.refused() || hipsim::queue_copy(call, to, from, size, kind, nullptr, place, &queued) != hipSuccess)
    return call.error();
  return hipsim::finish(call, queued);
}

hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t size, hipMemcpyKind kind, hipStream_t stream,
                          Place place) {
  ApiCall call{"hipMemcpyAsync", place};
  OpPtr queued;
  if (call.refused() || hipsim::queue_copy(call, to, from, size, kind, stream, place, &queued) != hipSuccess)
    return call.error();
  return hipsim::finish_async(call, queued);
}

hipError_t hipMemset(void* to, int value, std::size_t size, Place place) {
  ApiCall call{"hipMemset", place, ApiCall::blocking};
  OpPtr queued;
  if (call.refused() || hipsim::queue_set(call, to, value, size, nullptr, place, &queued) != hipSuccess)
    return call.error();
  return hipsim::finish(call, queued);
}

hipError_t hipMemsetAsync(void* to, int value, std::size_t size, hipStream_t stream, Place place) {
  ApiCall call{"hipMemsetAsync", place};
  if (call.refused()) return call.error();
  return hipsim::queue_set(call, to, value, size, stream, place, nullptr);
}
