// Lanes in lock step: what one writes, the others of its warp read, without a barrier. Code for AMD's GPUs relies on
// it. The kernels tell their blocks, and with clang each access. Races are looked at in race_test.
#include "runtime_test.hpp"

#include <cstdint>

namespace {

using namespace hipsim_test;

constexpr int num_seeds = 16;
constexpr int threads = 128;

class Lockstep : public Runtime {
 protected:
  /// With how many seeds each thread has written what `expected` says, from n, n + 1, n + 2 and so on. The n is another
  /// each time: with g++ the __shared__ numbers of the launch before are still there.
  template <class Expected>
  static int num_right(void (*kernel)(const int*, int*), bool lockstep, int warp, Expected expected) {
    int right = 0;
    for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
      start_over();
      hipsim::Config config;
      config.seed = seed;
      config.warp_size = warp;
      config.lockstep = lockstep;
      EXPECT_TRUE(hipsim::configure(config));
      const int base = 1000 * static_cast<int>(seed + 1);
      std::vector<int> numbers(threads);
      for (int i = 0; i < threads; ++i) numbers[static_cast<std::size_t>(i)] = base + i;
      int* out = device_array<int>(threads);
      hipLaunchKernelGGL(kernel, dim3(1), dim3(threads), 0, nullptr, device_copy(numbers), out);
      const std::vector<int> got = host_copy(out, threads);
      bool is_right = true;
      for (int i = 0; i < threads; ++i) is_right &= got[static_cast<std::size_t>(i)] == expected(base, i, warp);
      right += is_right ? 1 : 0;
    }
    return right;
  }
  template <class Expected>
  static void expect_right_in_lockstep_alone(void (*kernel)(const int*, int*), Expected expected) {
    for (const int warp : {32, 64}) {
      EXPECT_EQ(num_right(kernel, true, warp, expected), num_seeds) << "warps of " << warp;
      EXPECT_LT(num_right(kernel, false, warp, expected), num_seeds) << "warps of " << warp;
    }
  }
};

__global__ void sums_up_its_warp(const int* in, int* out) {
  __shared__ volatile unsigned int sums[threads];  // without lock step there is junk in it, which may overflow
  const int i = static_cast<int>(threadIdx.x);
  const int lane = __lane_id();
  sums[i] = static_cast<unsigned int>(in[i]);
  for (int step = warpSize / 2; step > 0; step /= 2)
    if (lane < step) sums[i] = sums[i] + sums[i + step];
  out[i] = static_cast<int>(sums[i - lane]);
}
TEST_F(Lockstep, a_sum_over_a_warp_needs_no_barrier) {
  expect_right_in_lockstep_alone(sums_up_its_warp, [](int base, int i, int warp) {
    const int first = base + i / warp * warp;
    return warp * first + warp * (warp - 1) / 2;
  });
}

__global__ void gets_a_number_from_lane_0(const int* in, int* out) {
  __shared__ volatile int numbers[threads];
  const int i = static_cast<int>(threadIdx.x);
  if (__lane_id() == 0) numbers[i / warpSize] = in[i];
  out[i] = numbers[i / warpSize];
}
TEST_F(Lockstep, what_lane_0_writes_in_a_branch_is_there_behind_it) {
  expect_right_in_lockstep_alone(gets_a_number_from_lane_0,
                                 [](int base, int i, int warp) { return base + i / warp * warp; });
}

__global__ void reads_the_other_warp(const int* in, int* out) {
  __shared__ volatile int numbers[threads];
  const int i = static_cast<int>(threadIdx.x);
  numbers[i] = in[i];
  out[i] = numbers[threads - 1 - i];
}
TEST_F(Lockstep, warps_are_not_in_step_with_each_other) {
  for (const int warp : {32, 64})
    EXPECT_LT(num_right(reads_the_other_warp, true, warp, [](int base, int i, int) { return base + threads - 1 - i; }),
              num_seeds);
}

#if defined(__clang__)

__global__ void swaps_with_its_neighbour(const int* in, int* out) {
  __shared__ volatile int numbers[threads];
  const int i = static_cast<int>(threadIdx.x);
  numbers[i] = in[i];
  numbers[i ^ 1] = numbers[i] + 1;
  out[i] = numbers[i];
}
TEST_F(Lockstep, accesses_in_one_block_are_in_step_with_clang) {
  expect_right_in_lockstep_alone(swaps_with_its_neighbour, [](int base, int i, int) { return base + (i ^ 1) + 1; });
}

/// Each lane reads before any of them writes.
__global__ void adds_the_next_lane(const int* in, int* out) {
  __shared__ volatile unsigned int sums[threads];
  const int i = static_cast<int>(threadIdx.x);
  sums[i] = static_cast<unsigned int>(in[i]);
  sums[i] = sums[i] + sums[i - __lane_id() + (__lane_id() + 1) % warpSize];
  out[i] = static_cast<int>(sums[i]);
}
TEST_F(Lockstep, lanes_read_before_any_of_them_writes_with_clang) {
  expect_right_in_lockstep_alone(adds_the_next_lane, [](int base, int i, int warp) {
    const int next = i % warp == warp - 1 ? i + 1 - warp : i + 1;
    return 2 * base + i + next;
  });
}

#endif

/// A loop that calls nothing is ended where the kernel tells its blocks.
__global__ void waits_for_a_plain_variable(volatile int* goes_on) {
  while (*goes_on != 0) {
  }
}
TEST_F(Lockstep, a_loop_without_end_is_reported_with_its_place_in_step_and_not) {
  for (const bool lockstep : {false, true}) {
    start_over();
    hipsim::Config config;
    config.lockstep = lockstep;
    config.max_steps = 10000;
    EXPECT_TRUE(hipsim::configure(config));
    int* goes_on = device_copy(std::vector<int>{1});
    hipLaunchKernelGGL(waits_for_a_plain_variable, dim3(1), dim3(8), 0, nullptr, goes_on);
    EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
    const std::string text = take_report(hipsim::Report::endless_kernel);
    EXPECT_TRUE(contains(text, "waits_for_a_plain_variable")) << text;
    EXPECT_TRUE(contains(text, "the block has passed 10000 points and not ended")) << text;
  }
}

}  // namespace
