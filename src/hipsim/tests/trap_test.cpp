// Kernels that cannot go on: they divide by zero, or pass the same points without end. Each ends with a report, and the
// process lives.
#include "runtime_test.hpp"

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace {

using namespace hipsim_test;

class Division : public Runtime {};
class Endless : public Runtime {
 protected:
  static void limit_steps(std::uint64_t max_steps, std::uint64_t seed = 0) {
    hipsim::Config config;
    config.seed = seed;
    config.max_steps = max_steps;
    EXPECT_TRUE(hipsim::configure(config));
  }
};

/// The report of a kernel, which later calls answer with a launch failure until the device is reset.
std::string take_failure(hipsim::Report::Kind kind, const char* kernel) {
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  const std::string text = take_report(kind);
  EXPECT_TRUE(contains(text, std::string{"kernel "} + kernel + " (launched at ")) << text;
  EXPECT_TRUE(contains(text, "trap_test.cpp:")) << text;
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  static_cast<void>(hipDeviceReset());
  reports.clear();
  static_cast<void>(hipGetLastError());
  must(hipDeviceSynchronize());
  return text;
}

// UBSan would be faster.
#if defined(__clang__)
#define HIPSIM_TEST_DIVIDES __attribute__((no_sanitize("integer-divide-by-zero", "signed-integer-overflow")))
#else
#define HIPSIM_TEST_DIVIDES
#endif

HIPSIM_TEST_DIVIDES __attribute__((noinline)) __device__ int divide(volatile int* by, int value) { return value / *by; }
constexpr int division_line = __LINE__ - 1;
__global__ void divides(int* by, int* out) { out[threadIdx.x] = divide(by + threadIdx.x, 100); }
__global__ void divides_between_barriers(int* by, int* out) {
  __syncthreads();
  out[threadIdx.x] = divide(by + threadIdx.x, std::numeric_limits<int>::min());
  __syncthreads();
}

#if defined(__x86_64__)

TEST_F(Division, by_zero_is_reported_with_block_thread_and_place) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    configure(seed);
    std::vector<int> by(8, 5);
    by[3] = 0;
    int* divisors = device_copy(by);
    hipLaunchKernelGGL(divides, dim3(2), dim3(8), 0, nullptr, divisors, device_array<int>(8));
    const std::string text = take_failure(hipsim::Report::division_by_zero, "divides");
    EXPECT_TRUE(contains(text, "): thread 3 divides by zero")) << text;
    EXPECT_TRUE(contains(text, "block (")) << text;
    if (has_address_sanitizer || has_thread_sanitizer) {
      EXPECT_TRUE(contains(text, "trap_test.cpp:" + std::to_string(division_line))) << text;
    } else {
      EXPECT_TRUE(contains(text, "trap_test+0x")) << text;
    }
  }
}

TEST_F(Division, of_the_lowest_number_by_minus_one_is_reported) {
  std::vector<int> by(64, 5);
  by[40] = -1;
  int* divisors = device_copy(by);
  hipLaunchKernelGGL(divides_between_barriers, dim3(1), dim3(64), 0, nullptr, divisors, device_array<int>(64));
  const std::string text = take_failure(hipsim::Report::division_by_zero, "divides_between_barriers");
  EXPECT_TRUE(contains(text, "thread 40 divides")) << text;
}

/// The stack of the thread and those of all others are used again.
TEST_F(Division, leaves_a_device_that_works_after_a_reset) {
  for (int i = 0; i < 20; ++i) {
    std::vector<int> by(64, 5);
    by[static_cast<std::size_t>(3 * i)] = i % 2 == 0 ? 0 : 4;
    int* divisors = device_copy(by);
    int* out = device_array<int>(64);
    hipLaunchKernelGGL(divides_between_barriers, dim3(1), dim3(64), 0, nullptr, divisors, out);
    if (i % 2 == 0) {
      take_failure(hipsim::Report::division_by_zero, "divides_between_barriers");
      continue;
    }
    EXPECT_EQ(host_copy(out, 64)[0], std::numeric_limits<int>::min() / 5);
    must(hipFree(divisors));
    must(hipFree(out));
  }
}

volatile int zero = 0;
volatile int num_handled = 0;
jmp_buf after_division;
volatile int quotient = 0;
HIPSIM_TEST_DIVIDES void divide_on_the_host(void*) { quotient = 100 / zero; }

/// The handler of a program is there for its own divisions, before and after kernels have run.
TEST_F(Division, elsewhere_goes_to_the_programs_own_handler) {
  struct sigaction own {};
  struct sigaction before {};
  own.sa_handler = [](int) {
    num_handled = num_handled + 1;
    siglongjmp(after_division, 1);
  };
  own.sa_flags = SA_NODEFER;
  sigaction(SIGFPE, &own, &before);
  hipsim::reset();
  hipsim::set_report_handler(collect);
  num_handled = 0;
  int* divisors = device_copy(std::vector<int>{0});
  hipLaunchKernelGGL(divides, dim3(1), dim3(1), 0, nullptr, divisors, device_array<int>(1));
  take_failure(hipsim::Report::division_by_zero, "divides");
  EXPECT_EQ(num_handled, 0);
  if (sigsetjmp(after_division, 1) == 0) divide_on_the_host(nullptr);
  EXPECT_EQ(num_handled, 1);
  sigaction(SIGFPE, &before, nullptr);
}

TEST_F(Division, in_a_host_function_ends_the_process) {
  EXPECT_DEATH(
      {
        int* divisors = device_copy(std::vector<int>{1});
        hipLaunchKernelGGL(divides, dim3(1), dim3(1), 0, nullptr, divisors, device_array<int>(1));
        must(hipLaunchHostFunc(nullptr, divide_on_the_host, nullptr));
        static_cast<void>(hipDeviceSynchronize());
        std::exit(0);
      },
      "");
}

#endif

// ---- without end ----------------------------------------------------------------------------------------------------

__global__ void waits_at_barriers(volatile int* goes_on) {
  while (*goes_on != 0) __syncthreads();
}
__global__ void spins_on_an_atomic(int* cell) {
  while (atomicCAS(cell, 1, 2) != 3) {
  }
}
__global__ void passes_barriers(int count) {
  for (int i = 0; i < count; ++i) __syncthreads();
}

TEST_F(Endless, barriers_are_reported_with_their_place) {
  limit_steps(1000);
  int* goes_on = device_copy(std::vector<int>{1});
  hipLaunchKernelGGL(waits_at_barriers, dim3(2), dim3(8), 0, nullptr, goes_on);
  const std::string text = take_failure(hipsim::Report::endless_kernel, "waits_at_barriers");
  EXPECT_TRUE(contains(text, "the block has passed 1000 points and not ended")) << text;
  EXPECT_TRUE(contains(text, " was the last to run, at ")) << text;
}

TEST_F(Endless, atomics_are_reported) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    limit_steps(1000, seed);
    int* cell = device_copy(std::vector<int>{0});
    hipLaunchKernelGGL(spins_on_an_atomic, dim3(1), dim3(1), 0, nullptr, cell);
    const std::string text = take_failure(hipsim::Report::endless_kernel, "spins_on_an_atomic");
    EXPECT_TRUE(contains(text, "thread 0 was the last to run")) << text;
  }
}

/// 8 threads and 10 barriers are 80 points; the limit is a block's and not a launch's.
TEST_F(Endless, is_who_passes_more_points_than_the_limit_and_nobody_else) {
  limit_steps(81);
  hipLaunchKernelGGL(passes_barriers, dim3(5), dim3(8), 0, nullptr, 10);
  must(hipDeviceSynchronize());
  hipLaunchKernelGGL(passes_barriers, dim3(5), dim3(8), 0, nullptr, 11);
  take_failure(hipsim::Report::endless_kernel, "passes_barriers");
}

TEST_F(Endless, has_a_limit_that_ends_it_by_default) {
  int* cell = device_copy(std::vector<int>{0});
  hipLaunchKernelGGL(spins_on_an_atomic, dim3(1), dim3(1), 0, nullptr, cell);
  take_failure(hipsim::Report::endless_kernel, "spins_on_an_atomic");
}

TEST_F(Endless, a_limit_of_0_is_refused) {
  hipsim::Config config;
  config.max_steps = 0;
  EXPECT_FALSE(hipsim::configure(config));
}

/// The host may use a GPU's atomics as well.
TEST_F(Endless, atomics_on_the_host_are_not_counted) {
  limit_steps(3);
  int cell = 0;
  for (int i = 0; i < 10; ++i) atomicAdd(&cell, 1);
  EXPECT_EQ(cell, 10);
}

}  // namespace
