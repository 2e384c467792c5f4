#pragma once

#include "hipsim/hipsim.hpp"

#include "queue.hpp"
#include "watch.hpp"

#include <hip/hip_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// The inside of the runtime: one simulated machine, and what its rooms share.
namespace hipsim {

/// splitmix64.
class Random {
 public:
  void seed(std::uint64_t value) { state_ = value; }
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t word = state_;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
  }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_ = 0;
};

/// Every element changes places with one drawn from those not yet placed.
template <class List>
void shuffle(List& list, Random& random) {
  for (std::size_t left = list.size(); left > 1; --left) std::swap(list[left - 1], list[random.below(left)]);
}

struct Fault {
  std::string_view function;    ///< empty: any
  std::int64_t calls_left = 0;  ///< 0: none is set
  hipError_t error = hipSuccess;
  int percent = 0;  ///< of all calls, instead
  Random random{};
};

/// The handles of a kind that are there, in the order they were made. Few: a search is fast enough.
template <class T>
class Registry {
 public:
  T* add(std::unique_ptr<T> made) { return list_.emplace_back(std::move(made)).get(); }
  [[nodiscard]] T* find(const T* handle) const {
    for (const auto& held : list_)
      if (held.get() == handle) return held.get();
    return nullptr;
  }
  bool erase(const T* handle) {
    for (auto held = list_.begin(); held != list_.end(); ++held) {
      if (held->get() != handle) continue;
      T* const dead = held->release();
      list_.erase(held);
      std::destroy_at(dead);
      bury(dead);
      return true;
    }
    return false;
  }
  void clear() { list_.clear(); }
  [[nodiscard]] bool empty() const { return list_.empty(); }
  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] auto begin() const { return list_.begin(); }
  [[nodiscard]] auto end() const { return list_.end(); }

 private:
  /// The last handles that were destroyed keep their addresses, so that a stale one is not somebody else's new one.
  void bury(void* dead) {
    constexpr std::size_t max_buried = 256;
    buried_.push_back(dead);
    if (buried_.size() <= max_buried) return;
    ::operator delete(buried_.front());
    buried_.pop_front();
  }

  std::vector<std::unique_ptr<T>> list_;
  std::deque<void*> buried_;
};

/// The one simulated machine.
struct Runtime {
  Config config;
  Random random;
  Counters counted;
  std::unordered_map<const char*, std::int64_t> calls_of;  ///< by the literal's address: a name may have several
  Fault fault;
  std::string_view failed_function;
  bool fault_happened = false;
  hipError_t last_error = hipSuccess;
  /// A kernel was reported: nothing works until the device is reset.
  bool is_broken = false;
  std::string message;
  ReportHandler handler = nullptr;
  /// The name of what runs on the device or as a host function now: the API may not be called.
  const char* inside = nullptr;
  bool is_running = false;    ///< an operation
  bool is_reporting = false;  ///< the handler of reports is at work: it may not call back
  int device = 0;
  watch::Strand host_strand = nullptr;  ///< while something else runs

  std::map<std::uintptr_t, Allocation> allocations;  ///< by address
  std::size_t device_bytes = 0;                      ///< of those that are not pinned
  std::vector<const void*> order_made;               ///< of those
  std::vector<Allocation> freed;                     ///< the last few, in turn, for messages
  std::size_t num_freed = 0;
  std::uint64_t num_fresh = 0;    ///< allocations ever: each has junk of its own
  std::uint64_t num_watched = 0;  ///< launches ThreadSanitizer has watched: each deals its strands out anew

  Queue queue;
  Registry<ihipStream_t> streams;
  Registry<ihipEvent_t> events;
  Registry<ihipGraph> graphs;
  Registry<hipGraphExec> execs;
  std::unique_ptr<ihipStream_t> null_stream;

  Runtime();
  ~Runtime();
};

[[nodiscard]] Runtime& runtime();

[[nodiscard]] inline bool is_portable() { return runtime().config.rules == Rules::portable; }

/// What the simulated device says of itself, and holds a launch to.
struct Limits {
  std::uint32_t threads_per_block = 1024;  ///< also of x and y of a block
  std::uint32_t block_z = 0;
  std::uint32_t grid_x = 2147483647;
  std::uint32_t grid_yz = 65535;
  std::size_t shared_bytes = 0;
};
[[nodiscard]] Limits limits();

/// What hipGetLastError answers the calling thread.
[[nodiscard]] hipError_t& last_error();

/// file:line
[[nodiscard]] std::string text_of(const Place& place);

/// Hands a report to whoever listens; the default does not return.
void report(Report::Kind kind, const std::string& text);

/// One call of the API, from its first line to its last.
class ApiCall {
 public:
  enum Rule : std::uint8_t {
    anywhere,
    not_while_capturing,  ///< unsafe while any stream is captured, and ends that capture
    blocking,             ///< the same for what works on the null stream and waits for it
  };
  ApiCall(const char* function, const Place& place, Rule rule = anywhere);

  /// The call does nothing and answers `error()`.
  [[nodiscard]] bool refused() const { return error_ != hipSuccess; }
  [[nodiscard]] hipError_t error() const { return error_; }

  /// Refused for want of a device, and not on purpose: versions can be told all the same.
  [[nodiscard]] bool lacks_device() const { return error_ == hipErrorNoDevice && !is_injected_; }
  /// What a call that has waited answers: a kernel may have been reported.
  hipError_t finish();
  /// The answer of a call that went wrong: `what` says why.
  hipError_t fail(hipError_t error, const std::string& what);

 private:
  const char* function_;
  Place place_;
  hipError_t error_ = hipSuccess;
  bool is_foreign_ = false;  ///< from another thread: nothing of the runtime is touched
  bool is_injected_ = false;
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// The allocation that holds `pointer`, null for memory that is not the runtime's.
[[nodiscard]] const Allocation* find_allocation(const void* pointer);
[[nodiscard]] Where where_is(const void* pointer);

/// While one of these lives, all device memory may be touched: kernels run.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};
/// While one of these lives, the device memory that holds `at` may be touched: a copy or a set runs, for which opening
/// all would cost more.
class AllocationAccess {
 public:
  explicit AllocationAccess(const void* at);
  ~AllocationAccess();
  AllocationAccess(const AllocationAccess&) = delete;
  AllocationAccess& operator=(const AllocationAccess&) = delete;

 private:
  const Allocation* opened_ = nullptr;
};
/// And while one of these lives inside, it may not: a host function runs.
class HostAccess {
 public:
  HostAccess();
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

 private:
  int depth_;
};

/// Frees everything; leaks are reported first if asked for.
void free_all(bool report_leaks);

/// Junk, the same for the same seed and `number`.
void fill_with_junk(void* at, std::size_t size, std::uint64_t number);

// ---- what runs ------------------------------------------------------------------------------------------------------

/// Runs a kernel to its end, as work of `strand`. False when it was reported.
bool run_kernel(const KernelLaunch& launch, watch::Strand strand);

/// Fills the __shared__ variables of the program with junk, and lets nobody have touched them.
void renew_shared_variables(Random& random);

/// Streams and their capture, for the rooms that queue things.
[[nodiscard]] ihipStream_t* find_stream(hipStream_t stream);
/// Takes every stream out of its capture, which comes to nothing.
void end_captures();
/// What a call does that a capture may not bear.
enum class Danger : std::uint8_t {
  unsafe_call,       ///< something that is not safe while anything is captured
  null_stream_work,  ///< work on the null stream, which the blocking streams would have to wait for
  null_stream_wait,  ///< a wait for the null stream, and with it for the blocking streams
  blocking_call,     ///< the first and the last: a copy or set on the null stream that waits
};
/// Ends every capture that does not bear such a call; false when there was none.
bool invalidate_captures(Danger danger);
/// Queues, or records in the capture the stream is in. Runs it when everything runs at once.
hipError_t enqueue(ApiCall& call, hipStream_t stream, std::shared_ptr<const Payload> payload, const Place& place,
                   OpPtr* queued = nullptr);

}  // namespace hipsim
