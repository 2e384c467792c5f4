#include "runtime.hpp"
#include "streams.hpp"
#include "traps.hpp"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace hipsim {
namespace {

void print_and_abort(const Report& report) {
  std::fflush(stdout);
  std::fprintf(stderr, "hipsim: %s%s: %s\n", name(report.kind), is_portable() ? " (portable rules)" : "",
               report.text.c_str());
  std::fflush(stderr);
  std::abort();
}

/// The thread that may call: the one that called first, or configured or reset the runtime last.
std::thread::id& owner() {
  static std::thread::id id = std::this_thread::get_id();
  return id;
}

void claim() { owner() = std::this_thread::get_id(); }

/// The last error of a thread that may not call.
thread_local hipError_t foreign_error = hipSuccess;

/// Takes one call off the fault that is set; true when this is the one.
bool is_faulty(Runtime& sim, const char* function) {
  Fault& fault = sim.fault;
  if (fault.percent > 0) {
    if (fault.random.below(100) >= static_cast<std::size_t>(fault.percent)) return false;
    sim.failed_function = function;
    sim.fault_happened = true;
    return true;
  }
  if (fault.calls_left == 0 || (!fault.function.empty() && fault.function != function)) return false;
  if (--fault.calls_left > 0) return false;
  sim.failed_function = function;
  sim.fault_happened = true;
  return true;
}

__attribute__((destructor)) void report_leaks_at_process_end() {
  Runtime& sim = runtime();
  if (!sim.allocations.empty() || !sim.streams.empty() || !sim.events.empty() || !sim.graphs.empty() ||
      !sim.execs.empty())
    free_all(true);
}

}  // namespace

Runtime::Runtime() { random.seed(config.seed); }
Runtime::~Runtime() = default;

Runtime& runtime() {
  // Never destroyed: static objects of the program may free their memory later than this file's.
  static Runtime* const sim = new Runtime;
  return *sim;
}

std::string text_of(const Place& place) { return std::string{place.file} + ":" + std::to_string(place.line); }

const char* name(Rules rules) {
  switch (rules) {
    case Rules::amd:
      return "AMD";
    case Rules::portable:
      return "portable";
  }
  return "unknown";
}

Limits limits() {
  Limits limits;
  // CUDA's are the smaller ones; more shared memory than 48 KiB has to be asked for there.
  limits.block_z = is_portable() ? 64 : 1024;
  limits.shared_bytes = std::size_t{is_portable() ? 48u : 64u} << 10;
  return limits;
}

const char* name(Report::Kind kind) {
  switch (kind) {
    case Report::leak:
      return "leak";
    case Report::free_while_queued:
      return "free while queued";
    case Report::source_changed:
      return "source changed";
    case Report::freed_host_memory:
      return "freed host memory";
    case Report::barrier_not_reached:
      return "barrier not reached";
    case Report::call_in_kernel:
      return "call in kernel";
    case Report::lanes_undecided:
      return "lanes undecided";
    case Report::division_by_zero:
      return "division by zero";
    case Report::endless_kernel:
      return "endless kernel";
  }
  return "unknown";
}

void report(Report::Kind kind, const std::string& text) {
  Runtime& sim = runtime();
  if (sim.is_reporting) return;
  // The handler is the host's code, whoever runs now.
  const watch::Strand strand = watch::current_strand();
  if (sim.is_running) watch::become(sim.host_strand);
  const bool was_gpu_thread = std::exchange(traps::is_gpu_thread, false);
  sim.is_reporting = true;
  (sim.handler != nullptr ? sim.handler : print_and_abort)({kind, text});
  sim.is_reporting = false;
  traps::is_gpu_thread = was_gpu_thread;
  watch::become(strand);
}

ReportHandler set_report_handler(ReportHandler handler) { return std::exchange(runtime().handler, handler); }

ApiCall::ApiCall(const char* function, const Place& place, Rule rule) : function_(function), place_(place) {
  Runtime& sim = runtime();
  if (owner() != std::this_thread::get_id()) {
    is_foreign_ = true;
    error_ = foreign_error = hipErrorNotSupported;
    return;
  }
  if (sim.is_reporting) {
    error_ = hipErrorNotSupported;
    return;
  }
  ++sim.counted.calls;
  ++sim.calls_of[function];
  if (sim.inside != nullptr) {
    fail(hipErrorNotSupported, std::string{"called from "} + sim.inside);
    report(Report::call_in_kernel, sim.message);
    return;
  }
  if (is_faulty(sim, function)) {
    sim.message.clear();
    is_injected_ = true;
    error_ = sim.last_error = sim.fault.error;
    return;
  }
  if (sim.config.num_devices == 0) {
    fail(hipErrorNoDevice, "the simulated machine has no device");
  } else if (sim.is_broken && function_ != std::string_view{"hipDeviceReset"}) {
    fail(hipErrorLaunchFailure, "a kernel was reported before");
  } else if (rule == not_while_capturing && invalidate_captures(Danger::unsafe_call)) {
    fail(hipErrorStreamCaptureUnsupported, "called while a stream is captured; the capture is lost");
  } else if (rule == blocking && invalidate_captures(Danger::blocking_call)) {
    fail(hipErrorStreamCaptureImplicit, "waits for the null stream while a stream is captured; the capture is lost");
  }
}

hipError_t ApiCall::finish() {
  return runtime().is_broken ? fail(hipErrorLaunchFailure, "a kernel was reported") : hipSuccess;
}

hipError_t ApiCall::fail(hipError_t error, const std::string& what) {
  if (is_foreign_) return error_;
  Runtime& sim = runtime();
  sim.message = std::string{function_} + ": " + what + " (at " + text_of(place_) + ")";
  error_ = sim.last_error = error;
  return error;
}

bool configure(const Config& config) {
  Runtime& sim = runtime();
  const bool is_warp = config.warp_size == 32 || config.warp_size == 64;
  const bool is_mode = config.mode == Mode::lazy || config.mode == Mode::eager;
  const bool is_rules = config.rules == Rules::amd || config.rules == Rules::portable;
  if (sim.inside != nullptr || sim.is_reporting) return false;
  if (!is_warp || !is_mode || !is_rules || config.num_devices < 0 || config.max_steps == 0) return false;
  claim();
  sim.queue.run_all();
  traps::look_again();
  sim.config = config;
  sim.random.seed(config.seed);
  sim.num_fresh = 0;
  sim.num_watched = 0;
  if (sim.device >= config.num_devices) sim.device = 0;
  return true;
}

const Config& config() { return runtime().config; }

Counters counters() {
  const Runtime& sim = runtime();
  Counters counted = sim.counted;
  counted.live_allocations = static_cast<std::int64_t>(sim.allocations.size());
  for (const auto& [at, allocation] : sim.allocations) counted.live_bytes += static_cast<std::int64_t>(allocation.size);
  counted.live_handles =
      static_cast<std::int64_t>(sim.streams.size() + sim.events.size() + sim.graphs.size() + sim.execs.size());
  return counted;
}

void reset_counters() {
  runtime().counted = {};
  runtime().calls_of.clear();
}

std::int64_t calls_of(std::string_view function) {
  std::int64_t calls = 0;
  for (const auto& [name, count] : runtime().calls_of)
    if (name == function) calls += count;
  return calls;
}

void fail_call(std::int64_t n, hipError_t error) { fail_call({}, n, error); }

void fail_call(std::string_view function, std::int64_t n, hipError_t error) {
  Runtime& sim = runtime();
  // The caller's text may be gone when the call comes.
  static std::string kept;
  kept = function;
  sim.fault = {kept, n > 0 && error != hipSuccess ? n : 0, error};
  sim.failed_function = {};
  sim.fault_happened = false;
}

void fail_some(int percent, std::uint64_t seed, hipError_t error) {
  fail_call({}, 0, error);
  if (error == hipSuccess) return;
  runtime().fault.percent = percent;
  runtime().fault.random.seed(seed);
}

bool clear_fault() {
  Runtime& sim = runtime();
  sim.fault = {};
  return std::exchange(sim.fault_happened, false);
}

hipError_t& last_error() { return owner() == std::this_thread::get_id() ? runtime().last_error : foreign_error; }

std::string_view failed_function() { return runtime().failed_function; }

std::string last_message() { return runtime().message; }

std::vector<Allocation> live_allocations() {
  std::vector<Allocation> live;
  for (const void* pointer : runtime().order_made)
    live.push_back(runtime().allocations.at(reinterpret_cast<std::uintptr_t>(pointer)));
  return live;
}

void reset() {
  Runtime& sim = runtime();
  if (sim.inside != nullptr || sim.is_reporting) return;
  claim();
  sim.queue.drop();
  free_all(false);
  traps::look_again();
  sim.config = {};
  sim.random.seed(0);
  sim.num_fresh = 0;
  sim.num_watched = 0;
  sim.freed.clear();
  sim.num_freed = 0;
  reset_counters();
  clear_fault();
  sim.failed_function = {};
  sim.last_error = hipSuccess;
  sim.is_broken = false;
  sim.message.clear();
  sim.handler = nullptr;
  sim.device = 0;
}

}  // namespace hipsim

using hipsim::ApiCall;
using hipsim::Place;
using hipsim::runtime;

// ---- devices --------------------------------------------------------------------------------------------------------

namespace {

constexpr int hip_version = 50221153;  // the HIP whose interface this is a subset of
constexpr int num_processors = 4;

bool has_device(int device) { return device >= 0 && device < runtime().config.num_devices; }

hipError_t no_such_device(ApiCall& call, int device) {
  return call.fail(hipErrorInvalidDevice, "there is no device " + std::to_string(device));
}

hipError_t null_argument(ApiCall& call, const char* what) {
  return call.fail(hipErrorInvalidValue, std::string{what} + " is null");
}

}  // namespace

hipError_t hipInit(unsigned int flags, Place place) {
  ApiCall call{"hipInit", place};
  if (call.refused()) return call.error();
  return flags == 0 ? hipSuccess : call.fail(hipErrorInvalidValue, "flags have to be 0");
}

hipError_t hipRuntimeGetVersion(int* version, Place place) {
  ApiCall call{"hipRuntimeGetVersion", place};
  // A runtime without a device still has a version.
  if (call.refused() && !call.lacks_device()) return call.error();
  if (call.refused()) runtime().last_error = hipSuccess;
  if (version == nullptr) return null_argument(call, "version");
  *version = hip_version;
  return hipSuccess;
}

hipError_t hipDriverGetVersion(int* version, Place place) {
  ApiCall call{"hipDriverGetVersion", place};
  if (call.refused() && !call.lacks_device()) return call.error();
  if (call.refused()) runtime().last_error = hipSuccess;
  if (version == nullptr) return null_argument(call, "version");
  *version = hip_version;
  return hipSuccess;
}

hipError_t hipGetDeviceCount(int* count, Place place) {
  ApiCall call{"hipGetDeviceCount", place};
  if (call.refused() && !call.lacks_device()) return call.error();
  if (count == nullptr) return null_argument(call, "count");
  *count = 0;
  if (call.refused()) return call.error();
  *count = runtime().config.num_devices;
  return hipSuccess;
}

hipError_t hipGetDevice(int* device, Place place) {
  ApiCall call{"hipGetDevice", place};
  if (call.refused()) return call.error();
  if (device == nullptr) return null_argument(call, "device");
  *device = runtime().device;
  return hipSuccess;
}

hipError_t hipSetDevice(int device, Place place) {
  ApiCall call{"hipSetDevice", place};
  if (call.refused()) return call.error();
  if (!has_device(device)) return no_such_device(call, device);
  runtime().device = device;
  return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device, Place place) {
  ApiCall call{"hipGetDeviceProperties", place};
  if (call.refused()) return call.error();
  if (properties == nullptr) return null_argument(call, "properties");
  if (!has_device(device)) return no_such_device(call, device);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "simulated device %d", device);
  std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "hipsim");
  properties->totalGlobalMem = runtime().config.device_memory_bytes;
  const hipsim::Limits limits = hipsim::limits();
  properties->sharedMemPerBlock = limits.shared_bytes;
  properties->warpSize = runtime().config.warp_size;
  properties->maxThreadsPerBlock = static_cast<int>(limits.threads_per_block);
  for (int& dim : properties->maxThreadsDim) dim = static_cast<int>(limits.threads_per_block);
  properties->maxThreadsDim[2] = static_cast<int>(limits.block_z);
  properties->maxGridSize[0] = static_cast<int>(limits.grid_x);
  properties->maxGridSize[1] = properties->maxGridSize[2] = static_cast<int>(limits.grid_yz);
  properties->multiProcessorCount = num_processors;
  return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device, Place place) {
  ApiCall call{"hipDeviceGetAttribute", place};
  if (call.refused()) return call.error();
  if (value == nullptr) return null_argument(call, "value");
  if (!has_device(device)) return no_such_device(call, device);
  switch (attribute) {
    case hipDeviceAttributeMaxThreadsPerBlock:
      *value = static_cast<int>(hipsim::limits().threads_per_block);
      return hipSuccess;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
      *value = static_cast<int>(hipsim::limits().shared_bytes);
      return hipSuccess;
    case hipDeviceAttributeMultiprocessorCount:
      *value = num_processors;
      return hipSuccess;
    case hipDeviceAttributeWarpSize:
      *value = runtime().config.warp_size;
      return hipSuccess;
  }
  return call.fail(hipErrorInvalidValue, "there is no attribute " + std::to_string(static_cast<int>(attribute)));
}

hipError_t hipDeviceReset(Place place) {
  ApiCall call{"hipDeviceReset", place};
  if (call.refused()) return call.error();
  hipsim::end_captures();
  if (runtime().is_broken)
    runtime().queue.drop();
  else
    runtime().queue.run_all();
  hipsim::free_all(true);
  runtime().is_broken = false;
  return hipSuccess;
}
