#pragma once

// HIP as hipsim has it: the host API, and the language of kernels as ordinary functions.

#include "hip/hip_runtime_api.h"

#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#error "hipsim looks for races with clang: g++ cannot tell the __shared__ memory of two blocks apart"
#endif

#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

// ---- what the compiler is told
// ---------------------------------------------------------------------------------------

/// 1 when hipsim's CMake target has compiled this file: with frame pointers, and without merging or copying calls. What
/// lanes of a warp tell each other is reported as undecided where it is 0.
#ifndef HIPSIM_KEEPS_CALLS
#define HIPSIM_KEEPS_CALLS 0
#endif

#if defined(__clang__)
#define HIPSIM_CONVERGENT __attribute__((convergent, nomerge))
#else
#define HIPSIM_CONVERGENT
#endif

// hipsim_trace_control_flow() of hipsim's CMake. The compiler's calls go to names of hipsim's own: libFuzzer and the
// sanitizers have functions of the others.
#if defined(HIPSIM_TRACES)
asm(".set __sanitizer_cov_trace_pc, hipsim_trace_block");
#define HIPSIM_REDIRECT(size)                                     \
  asm(".set __sanitizer_cov_load" #size ", hipsim_trace_access"); \
  asm(".set __sanitizer_cov_store" #size ", hipsim_trace_access");
HIPSIM_REDIRECT(1)
HIPSIM_REDIRECT(2)
HIPSIM_REDIRECT(4)
HIPSIM_REDIRECT(8)
HIPSIM_REDIRECT(16)
#undef HIPSIM_REDIRECT
#endif

/// An instruction that does nothing. Who reads the code of a kernel that was inlined in the loop over its threads sees
/// there that the next thread's code is not this one's.
#if defined(__x86_64__)
#define HIPSIM_THREAD_ENDS asm volatile(".byte 0x0f, 0x1f, 0x80, 0x68, 0x69, 0x70, 0x73")
#else
#define HIPSIM_THREAD_ENDS static_cast<void>(0)
#endif

// ---- the words of the language --------------------------------------------------------------------------------------

#define __host__
#define __device__
#define __global__
#define __constant__
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __launch_bounds__(...)
/// Memory of a block. Clang keeps it in a section of its own, so that the runtime finds it and fills it with junk
/// before each block; the name has a dot so that AddressSanitizer still guards what is in it. g++ cannot mix inline and
/// other functions in one section: there it keeps what the block before left, and races are not looked for.
#if defined(__clang__)
#define __shared__ static __attribute__((used, section("hipsim.shared")))
#else
#define __shared__ static
#endif
/// `extern __shared__` as every platform can have it.
#define HIP_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(hipsim::detail::dynamic_shared())
#define HIP_KERNEL_NAME(...) __VA_ARGS__

struct dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
  constexpr dim3(std::uint32_t x_ = 1, std::uint32_t y_ = 1, std::uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  std::uint32_t x;
  std::uint32_t y;
  std::uint32_t z;
};

namespace hipsim::detail {

/// The thread that runs now.
struct Current {
  uint3 idx;
  std::uint32_t linear;  ///< unless the block is a line: there it is idx.x
};
extern Current current;
extern uint3 block_idx;
extern dim3 block_dim;
extern dim3 grid_dim;
extern int warp_size;

#if defined(__clang__) && defined(HIPSIM_TRACES)
#define HIPSIM_UNWATCHED __attribute__((no_sanitize("thread"), no_sanitize("coverage"), noinline))
#elif defined(__clang__)
#define HIPSIM_UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#elif defined(HIPSIM_TRACES)
#define HIPSIM_UNWATCHED __attribute__((no_sanitize_coverage))
#else
#define HIPSIM_UNWATCHED
#endif

/// Which threads of the block, in the order they start, a worker runs when it is started.
struct ThreadCursor {
  std::uint32_t next = 0;
  std::uint32_t end = 0;  ///< at least one thread is run
  std::uint32_t at = 0;   ///< the one that was begun last
  bool is_plain = true;   ///< in a line, in ascending order, and nobody watches
};
extern ThreadCursor cursor;

/// Around the at-th thread of a block that is not plain.
void begin_thread(std::uint32_t at);
void end_thread();

/// A launch: how to run threads of it, and its arguments, by value.
struct Work {
  using Run = void (*)(const void* call);
  Run run = nullptr;                      ///< runs the cursor's threads
  void (*destroy)(void* call) = nullptr;  ///< ends the arguments' lifetime
  void* call = nullptr;
  std::size_t size = 0;  ///< of the call
  /// Whether an argument is a pointer into [at, at + size).
  bool (*points_into)(const void* call, const void* at, std::size_t size) = nullptr;
};

/// The kernel by name, so that it is inlined in the loop over threads, and its arguments.
template <class Kernel, class... Args>
struct Call {
  Kernel kernel;
  std::tuple<Args...> args;

  HIPSIM_UNWATCHED static void run(const void* self) {
    const Call& call = *static_cast<const Call*>(self);
    // The end is looked at anew behind each thread: it comes earlier when one has stopped in between.
    std::uint32_t at = cursor.next++;
    if (cursor.is_plain) {
      do {
        current.idx.x = at;
        std::apply(call.kernel, call.args);
        HIPSIM_THREAD_ENDS;
      } while (++at < cursor.end);
      return;
    }
    do {
      begin_thread(at);
      std::apply(call.kernel, call.args);
      end_thread();
      HIPSIM_THREAD_ENDS;
    } while (++at < cursor.end);
  }
  static void destroy(void* self) { delete static_cast<Call*>(self); }
  static bool points_into(const void* self, const void* at, std::size_t size) {
    const auto first = reinterpret_cast<std::uintptr_t>(at);
    const auto leads_there = [&](const auto& arg) {
      if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(arg)>>)
        return reinterpret_cast<std::uintptr_t>(arg) - first < size;
      else
        return false;
    };
    return std::apply([&](const auto&... arg) { return (leads_there(arg) || ...); },
                      static_cast<const Call*>(self)->args);
  }
};

/// Takes the work over, whatever happens.
void launch(const char* name, const Work& work, dim3 grid, dim3 block, std::size_t shared_bytes, hipStream_t stream,
            Place place);

/// `kernel` runs `function`, whose parameters the arguments are converted to.
template <class Kernel, class... Parameters, class... Args>
void launch_kernel(const char* name, Kernel kernel, void (*function)(Parameters...), dim3 grid, dim3 block,
                   std::size_t shared_bytes, hipStream_t stream, Place place, Args&&... args) {
  using Made = Call<Kernel, std::remove_cv_t<std::remove_reference_t<Parameters>>...>;
  if (function == nullptr) return launch(name, {}, grid, block, shared_bytes, stream, place);
  auto* call = new Made{kernel, {static_cast<Parameters>(std::forward<Args>(args))...}};
  launch(name, {Made::run, Made::destroy, call, sizeof(Made), Made::points_into}, grid, block, shared_bytes, stream,
         place);
}

void* dynamic_shared();
void barrier(Place place);

/// What the lanes of a warp that met have to say to each other.
struct Met {
  std::uint64_t value = 0;   ///< of the lane asked for; junk when that lane is not there
  std::uint64_t ballot = 0;  ///< lanes whose value is not 0
  std::uint64_t active = 0;  ///< lanes that are there
};
/// `keeps_calls`: HIPSIM_KEEPS_CALLS of the file that the operation is in.
HIPSIM_CONVERGENT Met meet(std::uint64_t value, int source_lane, Place place, bool keeps_calls);
int lane_id();
/// Counts an atomic operation among the steps of a kernel.
void count_step();

template <class T>
T shuffle(T value, int source_lane, Place place) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet(bits, source_lane, place, HIPSIM_KEEPS_CALLS).value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace hipsim::detail

inline const uint3& threadIdx = hipsim::detail::current.idx;
inline const uint3& blockIdx = hipsim::detail::block_idx;
inline const dim3& blockDim = hipsim::detail::block_dim;
inline const dim3& gridDim = hipsim::detail::grid_dim;
inline const int& warpSize = hipsim::detail::warp_size;

// g++ has to be told to inline a kernel in the loop over its threads, which clang does by itself: a return from a
// kernel that other threads ran in between is one the processor mispredicts. 20 instead of 25 us, see bench/.
// A kernel that tells its blocks stays a function of its own: the loop is not to be told.
#if defined(HIPSIM_TRACES)
#define HIPSIM_INLINED __attribute__((noinline))
#elif defined(__clang__) || defined(__SANITIZE_ADDRESS__)
#define HIPSIM_INLINED
#else
#define HIPSIM_INLINED __attribute__((flatten))
#endif

/// Queues `kernel`; its error, if any, is hipGetLastError's. A block of more than 1024 threads, an empty grid or block,
/// and more shared memory than a block has are refused with hipErrorInvalidConfiguration.
#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...)                                       \
  hipsim::detail::launch_kernel(                                                                                 \
      #kernel, [=](auto... hipsim_args) HIPSIM_INLINED { (kernel)(hipsim_args...); }, (kernel), (grid), (block), \
      (shared_bytes), (stream), hipsim::Place{__FILE__, __LINE__} __VA_OPT__(, ) __VA_ARGS__)

// ---- inside a block -------------------------------------------------------------------------------------------------

inline void __syncthreads(HIPSIM_PLACE) { hipsim::detail::barrier(place); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline int __lane_id() { return hipsim::detail::lane_id(); }

// Lanes of a warp meet when no thread of the block can go on without, and only those that are at the same operation on
// the same path: the same calls, the same round of every loop around them. So a warp is together again behind a branch
// or a loop that only some lanes have gone through:
//   if (__lane_id() < 16) x = __shfl(x, 0);  // 16 lanes meet
//   mask = __ballot(1);                      // and then all
// Those that can still come to where others wait go first. The two branches of an `if` meet one after the other, also
// on one line or in a function that both call; lanes that `continue` a loop are waited for in its next round. Where the
// path cannot be told, it is reported. hipsim's README says what that takes.
template <class T>
T __shfl(T value, int source_lane, int width = warpSize, HIPSIM_PLACE) {
  const int self = hipsim::detail::lane_id();
  return hipsim::detail::shuffle(value, (source_lane & (width - 1)) + (self & ~(width - 1)), place);
}
template <class T>
T __shfl_up(T value, unsigned int delta, int width = warpSize, HIPSIM_PLACE) {
  const int self = hipsim::detail::lane_id();
  const int source = self - static_cast<int>(delta);
  return hipsim::detail::shuffle(value, source < (self & ~(width - 1)) ? self : source, place);
}
template <class T>
T __shfl_down(T value, unsigned int delta, int width = warpSize, HIPSIM_PLACE) {
  const int self = hipsim::detail::lane_id();
  const int source = self + static_cast<int>(delta);
  return hipsim::detail::shuffle(value, (self & (width - 1)) + static_cast<int>(delta) >= width ? self : source, place);
}
template <class T>
T __shfl_xor(T value, int mask, int width = warpSize, HIPSIM_PLACE) {
  const int self = hipsim::detail::lane_id();
  const int source = self ^ mask;
  return hipsim::detail::shuffle(value, source >= ((self + width) & ~(width - 1)) ? self : source, place);
}
inline unsigned long long __ballot(int predicate, HIPSIM_PLACE) {
  return hipsim::detail::meet(predicate != 0 ? 1 : 0, 0, place, HIPSIM_KEEPS_CALLS).ballot;
}
inline int __any(int predicate, HIPSIM_PLACE) {
  return hipsim::detail::meet(predicate != 0 ? 1 : 0, 0, place, HIPSIM_KEEPS_CALLS).ballot != 0;
}
inline int __all(int predicate, HIPSIM_PLACE) {
  const hipsim::detail::Met met = hipsim::detail::meet(predicate != 0 ? 1 : 0, 0, place, HIPSIM_KEEPS_CALLS);
  return met.ballot == met.active;
}

inline int __popc(unsigned int value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(value)); }
inline int __clzll(long long value) {
  return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value));
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }

// ---- atomics --------------------------------------------------------------------------------------------------------

// Acquire and release, which is more than HIP promises: what they order here needs a fence there.
namespace hipsim::detail {

template <class T, class Change>
T change(T* at, Change next) {
  count_step();
  T old;
  __atomic_load(at, &old, __ATOMIC_ACQUIRE);
  T wanted = next(old);
  while (!__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) wanted = next(old);
  return old;
}

}  // namespace hipsim::detail

#define HIPSIM_ATOMIC(name, T, builtin)          \
  inline T name(T* at, T value) {                \
    hipsim::detail::count_step();                \
    return builtin(at, value, __ATOMIC_ACQ_REL); \
  }
#define HIPSIM_ATOMICS(T)                                                                        \
  HIPSIM_ATOMIC(atomicAdd, T, __atomic_fetch_add)                                                \
  HIPSIM_ATOMIC(atomicSub, T, __atomic_fetch_sub)                                                \
  HIPSIM_ATOMIC(atomicAnd, T, __atomic_fetch_and)                                                \
  HIPSIM_ATOMIC(atomicOr, T, __atomic_fetch_or)                                                  \
  HIPSIM_ATOMIC(atomicXor, T, __atomic_fetch_xor)                                                \
  HIPSIM_ATOMIC(atomicExch, T, __atomic_exchange_n)                                              \
  inline T atomicMin(T* at, T value) {                                                           \
    return hipsim::detail::change(at, [value](T old) { return value < old ? value : old; });     \
  }                                                                                              \
  inline T atomicMax(T* at, T value) {                                                           \
    return hipsim::detail::change(at, [value](T old) { return value > old ? value : old; });     \
  }                                                                                              \
  inline T atomicCAS(T* at, T compare, T value) {                                                \
    hipsim::detail::count_step();                                                                \
    __atomic_compare_exchange_n(at, &compare, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); \
    return compare;                                                                              \
  }
HIPSIM_ATOMICS(int)
HIPSIM_ATOMICS(unsigned int)
HIPSIM_ATOMICS(unsigned long)
HIPSIM_ATOMICS(unsigned long long)
#undef HIPSIM_ATOMICS
#undef HIPSIM_ATOMIC

inline float atomicAdd(float* at, float value) {
  return hipsim::detail::change(at, [value](float old) { return old + value; });
}
inline double atomicAdd(double* at, double value) {
  return hipsim::detail::change(at, [value](double old) { return old + value; });
}
inline float atomicExch(float* at, float value) {
  return hipsim::detail::change(at, [value](float) { return value; });
}
/// Up to `limit`, then 0 again.
inline unsigned int atomicInc(unsigned int* at, unsigned int limit) {
  return hipsim::detail::change(at, [limit](unsigned int old) { return old >= limit ? 0u : old + 1; });
}
/// Down to 0, then `limit` again.
inline unsigned int atomicDec(unsigned int* at, unsigned int limit) {
  return hipsim::detail::change(at, [limit](unsigned int old) { return old == 0 || old > limit ? limit : old - 1; });
}
