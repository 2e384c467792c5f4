#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// hipsim: HIP on the host, made for testing. Code under test includes <hip/hip_runtime.h> and knows nothing of this
/// header; a test steers the runtime with it.
///
/// One OS thread, everything ordered by a seed: the same seed repeats the same run to the byte. A call from another
/// thread is refused with hipErrorNotSupported.
namespace hipsim {

/// When queued work runs.
enum class Mode : std::uint8_t {
  lazy,   ///< as late as the API allows: when somebody waits for it. A missing synchronisation shows
  eager,  ///< at once, in the call that queues it
};

/// Whose word counts where AMD and CUDA promise different things: README.md has a table of what differs.
enum class Rules : std::uint8_t {
  amd,       ///< what AMD documents for HIP
  portable,  ///< the stricter of AMD and CUDA: what code has to keep to that is built for both
};
[[nodiscard]] const char* name(Rules rules);

/// Points a block may pass until it is taken for endless: barriers, warp operations, atomics, and the blocks of a
/// kernel that tells them, each counted for each thread. 1024 threads with 100,000 each stay below it; a loop without
/// end comes to it in seconds.
inline constexpr std::uint64_t default_max_steps = std::uint64_t{1} << 27;

struct Config {
  /// Orders threads of a block between barriers, blocks of a grid, and ready streams, and chooses the junk in fresh
  /// memory. 0: the plain order, ascending.
  std::uint64_t seed = 0;
  Mode mode = Mode::lazy;
  Rules rules = Rules::amd;
  int warp_size = 64;                                       ///< 32 or 64
  int num_devices = 1;                                      ///< 0: every call but the queries answers hipErrorNoDevice
  std::size_t device_memory_bytes = std::size_t{64} << 30;  ///< beyond it hipMalloc answers hipErrorOutOfMemory
  /// Lanes of a warp take turns at each point that a kernel tells (hipsim's README says how), as on AMD's GPUs: a lane
  /// may read what another of its warp wrote before, without a barrier. ThreadSanitizer then finds races between warps.
  bool lockstep = false;
  std::uint64_t max_steps = default_max_steps;  ///< of a block, at least 1: one that passes more is reported
};

/// Sets how the runtime behaves from now on. Queued work is finished first, as it was configured. Memory, streams and
/// events stay. False, and nothing changes, when a value is out of range, or called from within a kernel.
bool configure(const Config& config);
[[nodiscard]] const Config& config();

/// Calls of the API, and what they asked for. A call that is refused, or made to fail, is counted as a call only.
struct Counters {
  std::int64_t calls = 0;        ///< all that can fail, launches among them
  std::int64_t launches = 0;     ///< kernels queued to run, each time a graph is launched, too; bytes likewise
  std::int64_t allocations = 0;  ///< device and pinned
  std::int64_t frees = 0;
  /// Calls in which the host waits: synchronise calls, copies and sets that block (not those within device memory,
  /// which return before they have run), and, by AMD's rules, frees.
  std::int64_t synchronisations = 0;
  /// Calls of hipMemcpyAsync that queue a copy to or from pageable memory: each makes the host wait, or stage. Copies
  /// that are captured are not counted.
  std::int64_t pageable_copies = 0;
  std::int64_t host_to_device_bytes = 0;
  std::int64_t device_to_host_bytes = 0;
  std::int64_t device_to_device_bytes = 0;
  std::int64_t host_to_host_bytes = 0;
  std::int64_t memset_bytes = 0;
  std::int64_t live_allocations = 0;  ///< now
  std::int64_t live_bytes = 0;        ///< now
  std::int64_t live_handles = 0;      ///< streams, events, graphs, executable graphs: now
};
[[nodiscard]] Counters counters();
/// Sets all but the live ones to 0.
void reset_counters();
/// Calls of one function since `reset_counters`: `calls_of("hipMalloc")`. Launches are "hipLaunchKernel".
[[nodiscard]] std::int64_t calls_of(std::string_view function);

/// Makes the n-th call from now (1: the next) fail with `error` and do nothing else. One fault at a time; a new one
/// replaces it. A launch that fails says so in hipGetLastError.
void fail_call(std::int64_t n, hipError_t error);
/// The same for the n-th call of one function: `fail_call("hipMalloc", 2, hipErrorOutOfMemory)`.
void fail_call(std::string_view function, std::int64_t n, hipError_t error);
/// Makes each call from now fail with a chance of `percent` in 100, drawn from `seed`, until the fault is taken back.
void fail_some(int percent, std::uint64_t seed, hipError_t error);
/// Takes the fault back. True when it had happened.
bool clear_fault();
/// The function whose call was made to fail last, empty when none was since the last `fail_call`.
[[nodiscard]] std::string_view failed_function();

/// A mistake that HIP itself has no error for.
struct Report {
  enum Kind : std::uint8_t {
    leak,                 ///< not freed at hipDeviceReset or process end
    free_while_queued,    ///< freed while work that uses it is queued: by portable rules, AMD's free waits for it
    source_changed,       ///< a pageable source was rewritten before its copy ran: likewise
    freed_host_memory,    ///< a host range of a copy was freed before the copy ran (AddressSanitizer knows)
    barrier_not_reached,  ///< threads of a block wait at a barrier that others have left out or exited past
    call_in_kernel,       ///< the API was called from a kernel or a host function
    lanes_undecided,      ///< which lanes meet at a warp operation cannot be told, or one came late to a meeting
    division_by_zero,     ///< an integer division in a kernel by zero, or of the lowest number by -1
    endless_kernel,       ///< a block has passed Config::max_steps points and not ended
  };
  Kind kind{};
  std::string text;  ///< one line; names kernel, block, threads (by linear number in the block), places
};
[[nodiscard]] const char* name(Report::Kind kind);

/// Is called with every report. The default prints it and aborts; a handler that returns lets the run go on (a kernel
/// that was reported ends, and later calls answer hipErrorLaunchFailure until hipDeviceReset or `reset`).
using ReportHandler = void (*)(const Report& report);
/// Sets the handler and returns the one before; null: the default.
ReportHandler set_report_handler(ReportHandler handler);

/// Why the last call that answered with an error did so, in a line with numbers and places. Empty: it was injected,
/// or there was none.
[[nodiscard]] std::string last_message();

struct Allocation {
  const void* pointer = nullptr;
  std::size_t size = 0;
  bool is_pinned = false;
  Place place;  ///< of the call that made it
};
/// What has not been freed, in the order it was made.
[[nodiscard]] std::vector<Allocation> live_allocations();

/// Drops queued work and frees everything without a word, and takes configuration, counters, faults and handler back
/// to what they were at the start: a clean slate between tests.
void reset();

}  // namespace hipsim
