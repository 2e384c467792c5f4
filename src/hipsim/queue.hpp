#pragma once

#include "gpu_strands.hpp"
#include "watch.hpp"

#include <hip/hip_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

/// Queued work as a graph: an operation runs when those it waits for have run.
namespace hipsim {

struct KernelLaunch {
  const char* name = "";
  detail::Work work;
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  Place place;

  KernelLaunch() = default;
  KernelLaunch(const KernelLaunch&) = delete;
  KernelLaunch& operator=(const KernelLaunch&) = delete;
  ~KernelLaunch() {
    // Threads that are not ordered before this have read the arguments, and nobody else can.
    watch::forget(work.call, work.size);
    if (work.destroy != nullptr) work.destroy(work.call);
  }
};

enum class Where : std::uint8_t { device, pinned, pageable };

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t size = 0;
  Where to_where = Where::device;
  Where from_where = Where::device;
};

struct Set {
  void* to = nullptr;
  int value = 0;
  std::size_t size = 0;
};

struct HostFunction {
  hipHostFn_t function = nullptr;
  void* data = nullptr;
};

/// Nothing but a place in the order.
struct Marker {};

/// What an operation does; shared with the graph it was captured in.
using Payload = std::variant<Marker, std::unique_ptr<KernelLaunch>, Copy, Set, HostFunction>;

/// A stream's place in ThreadSanitizer's world: its operations are one strand.
struct StreamStrand {
  watch::Strand strand = watch::make_strand("stream");
  StreamStrand() = default;
  StreamStrand(const StreamStrand&) = delete;
  StreamStrand& operator=(const StreamStrand&) = delete;
  ~StreamStrand() {
    forget_strands(strand);
    watch::end_strand(strand);
  }
};

/// "kernel add_one", "a copy of 64 bytes"
[[nodiscard]] std::string text_of(const Payload& payload);

struct Op;
using OpPtr = std::shared_ptr<Op>;

struct Op {
  std::shared_ptr<const Payload> payload;
  std::vector<OpPtr> waits_for;  ///< let go of when done
  std::shared_ptr<StreamStrand> strand;
  Place place;
  bool is_done = false;
  bool is_needed = false;        ///< scratch of Queue::run_until
  std::uint64_t number = 0;      ///< in the order queued
  std::int64_t done_at = 0;      ///< microseconds of simulated time
  bool is_void = false;          ///< what it works on was freed: it does nothing
  std::uint64_t source_sum = 0;  ///< of a pageable source, when the copy was queued
  bool knows_source = false;     ///< and nothing that is queued may have written it since
  bool hides_target = false;     ///< its target on the host is poisoned while the host runs, until it has run
  char queued = 0;               ///< ThreadSanitizer's handle of "it was queued"
  char done = 0;                 ///< and of "it has run"

  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  ~Op();
};

class Queue {
 public:
  /// Puts an operation behind those it waits for.
  void add(const OpPtr& op);
  /// Runs operations until `op` has run: those it needs, and with a seed perhaps others that could.
  void run_until(const OpPtr& op);
  void run_all();
  /// Runs one operation on the way to `op`: what a poll waits for gets on.
  void run_one_towards(const OpPtr& op);
  /// Lets go of everything that has not run.
  void drop();

  /// The host comes behind everything that has run.
  void wait_for_all() { watch::acquire(&any_done_); }

  /// The first operation that has not run and touches [at, at + size), which is about to go; null when there is none.
  /// None of those that do will run.
  const Op* void_users(const void* at, std::size_t size);
  [[nodiscard]] std::int64_t now() const { return now_; }

 private:
  class Running;
  class TargetsInSight;
  void run(Op& op);
  void run_payload(Op& op);
  void run_copy(Op& op, const Copy& copy);
  void forget_sources(const void* at, std::size_t size);
  void mark_needed(const OpPtr& op);
  [[nodiscard]] bool has_kernel() const;
  void sweep();

  std::vector<OpPtr> pending_;  ///< in the order queued, which no operation waits against
  std::int64_t now_ = 0;
  std::uint64_t num_queued_ = 0;
  char any_done_ = 0;  ///< ThreadSanitizer's handle of "all of them have run"
};

}  // namespace hipsim
