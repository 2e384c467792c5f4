// Kernels: indices, barriers, what lanes tell each other, atomics, shared memory, and the mistakes in them.
#include "runtime_test.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>

namespace {

using namespace hipsim_test;

class Kernel : public Runtime {
 protected:
  /// The error of the last launch or of the wait after it.
  static hipError_t wait() {
    const hipError_t launched = hipGetLastError();
    const hipError_t waited = hipDeviceSynchronize();
    return launched != hipSuccess ? launched : waited;
  }
};
class Barrier : public Kernel {};
class Warp : public Kernel {};
class Atomic : public Kernel {};
class Shared : public Kernel {};
class Launch : public Kernel {};

// ---- indices --------------------------------------------------------------------------------------------------------

struct Seen {
  uint3 thread;
  uint3 block;
};

__device__ std::uint32_t linear(uint3 at, dim3 size) { return (at.z * size.y + at.y) * size.x + at.x; }

__global__ void note_indices(Seen* seen) {
  const std::uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
  const std::uint32_t slot = linear(blockIdx, gridDim) * threads + linear(threadIdx, blockDim);
  seen[slot] = {threadIdx, blockIdx};
}

__global__ void note_indices_around_barrier(Seen* seen) {
  const uint3 thread = threadIdx;
  const uint3 block = blockIdx;
  __syncthreads();
  const std::uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
  const bool is_same = thread.x == threadIdx.x && thread.y == threadIdx.y && thread.z == threadIdx.z &&
                       block.x == blockIdx.x && block.y == blockIdx.y && block.z == blockIdx.z;
  if (is_same) seen[linear(blockIdx, gridDim) * threads + linear(threadIdx, blockDim)] = {threadIdx, blockIdx};
}

void expect_every_index_once(void (*kernel)(Seen*), dim3 grid, dim3 block) {
  const std::uint32_t threads = block.x * block.y * block.z;
  const std::uint32_t total = grid.x * grid.y * grid.z * threads;
  Seen* seen = device_array<Seen>(total);
  must(hipMemset(seen, 0xff, total * sizeof(Seen)));
  hipLaunchKernelGGL(kernel, grid, block, 0, nullptr, seen);
  const std::vector<Seen> slots = host_copy(seen, total);
  for (std::uint32_t slot = 0; slot < total; ++slot) {
    ASSERT_EQ(linear(slots[slot].thread, block), slot % threads);
    ASSERT_EQ(linear(slots[slot].block, grid), slot / threads);
    ASSERT_LT(slots[slot].thread.x, block.x);
    ASSERT_LT(slots[slot].thread.y, block.y);
    ASSERT_LT(slots[slot].block.x, grid.x);
    ASSERT_LT(slots[slot].block.y, grid.y);
  }
  must(hipFree(seen));
}

TEST_F(Kernel, every_thread_of_every_block_runs_once_under_every_seed) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    configure(seed);
    for (const auto kernel : {note_indices, note_indices_around_barrier}) {
      expect_every_index_once(kernel, dim3(1), dim3(1));
      expect_every_index_once(kernel, dim3(5), dim3(100));
      expect_every_index_once(kernel, dim3(2, 3, 2), dim3(4, 3, 5));
      expect_every_index_once(kernel, dim3(1, 2), dim3(1, 32, 32));
    }
  }
}

template <class T, int Times>
__global__ void scale(T* values, T by) {
  for (int i = 0; i < Times; ++i) values[threadIdx.x] *= by;
}

TEST_F(Kernel, templates_are_launched_by_their_name_in_brackets) {
  float* values = device_copy(std::vector<float>{1, 2});
  hipLaunchKernelGGL(HIP_KERNEL_NAME(scale<float, 3>), dim3(1), dim3(2), 0, nullptr, values, 2.0F);
  EXPECT_EQ(host_copy(values, 2), (std::vector<float>{8, 16}));
}

struct Big {
  std::int64_t values[100];
};
__global__ void take_big(Big big, const char& letter, std::int64_t* out) { *out = big.values[99] + letter; }

/// The caller's variables are gone or changed when the kernel runs.
TEST_F(Kernel, arguments_are_taken_by_value_at_the_launch) {
  std::int64_t* out = device_array<std::int64_t>(1);
  {
    auto big = std::make_unique<Big>();
    char letter = 1;
    big->values[99] = 41;
    hipLaunchKernelGGL(take_big, dim3(1), dim3(1), 0, nullptr, *big, letter, out);
    big->values[99] = 0;
    letter = 0;
  }
  EXPECT_EQ(host_copy(out, 1)[0], 42);
}

__global__ void takes_nothing() {}

TEST_F(Kernel, without_arguments_is_launched_too) {
  hipLaunchKernelGGL(takes_nothing, dim3(3), dim3(70), 0, nullptr);
  must(wait());
}

// ---- barriers -------------------------------------------------------------------------------------------------------

/// out[i] = sum of values up to i, by doubling steps, in place: right only when all barriers hold.
__global__ void scan(const int* values, int* out) {
  __shared__ int sums[1024];
  const std::uint32_t i = threadIdx.x;
  sums[i] = values[i];
  __syncthreads();
  for (std::uint32_t step = 1; step < blockDim.x; step *= 2) {
    const int before = i >= step ? sums[i - step] : 0;
    __syncthreads();
    sums[i] += before;
    __syncthreads();
  }
  out[i] = sums[i];
}

TEST_F(Barrier, orders_the_threads_of_a_block_under_every_seed) {
  for (const std::uint32_t threads : {1u, 2u, 63u, 64u, 65u, 256u, 1024u}) {
    int* values = device_copy(std::vector<int>(threads, 3));
    int* out = device_array<int>(threads);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      configure(seed);
      hipLaunchKernelGGL(scan, dim3(1), dim3(threads), 0, nullptr, values, out);
      const std::vector<int> sums = host_copy(out, threads);
      for (std::uint32_t i = 0; i < threads; ++i) ASSERT_EQ(sums[i], 3 * (static_cast<int>(i) + 1));
    }
    must(hipFree(values));
    must(hipFree(out));
  }
}

__global__ void reverse_without_barrier(int* out, int first) {
  __shared__ int values[64];
  values[threadIdx.x] = first + static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[63 - threadIdx.x];
}

TEST_F(Barrier, left_out_makes_the_result_wrong) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    configure(seed);
    int* out = device_array<int>(64);
    // Other values each time: with g++ those of the launch before are still there.
    const int first = 100 * (1 + static_cast<int>(seed));
    hipLaunchKernelGGL(reverse_without_barrier, dim3(1), dim3(64), 0, nullptr, out, first);
    const std::vector<int> values = host_copy(out, 64);
    std::size_t right = 0;
    for (std::size_t i = 0; i < 64; ++i) right += values[i] == first + static_cast<int>(63 - i) ? 1 : 0;
    EXPECT_LT(right, 64u) << "seed " << seed;
  }
}

__global__ void waits_in_both_branches(int* out) {
  __shared__ int value;
  if (threadIdx.x == 0) {
    value = 7;
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = value;
}
__global__ void leaves_out_thread_3() {
  if (threadIdx.x != 3) __syncthreads();
}
__global__ void returns_before_barrier() {
  if (blockIdx.x == 1 && threadIdx.x >= 30) return;
  __syncthreads();
}
__global__ void waits_once_too_often() {
  __syncthreads();
  if (threadIdx.x < 2) __syncthreads();
}

/// The report of a launch that goes wrong, which later calls answer with a launch failure.
template <class Launch>
std::string divergence(const char* kernel, Launch launch) {
  launch();
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  std::string text = take_report(hipsim::Report::barrier_not_reached);
  for (const char* part : {kernel, "kernel_test.cpp:", "block", "thread"}) EXPECT_TRUE(contains(text, part)) << text;
  return text;
}

TEST_F(Barrier, left_out_by_one_thread_is_reported_with_kernel_block_and_thread) {
  const std::string text =
      divergence("leaves_out_thread_3", [] { hipLaunchKernelGGL(leaves_out_thread_3, dim3(1), dim3(8), 0, nullptr); });
  EXPECT_TRUE(contains(text, "threads 3 ")) << text;
}

TEST_F(Barrier, exited_past_by_some_threads_is_reported_with_the_block) {
  const std::string text = divergence(
      "returns_before_barrier", [] { hipLaunchKernelGGL(returns_before_barrier, dim3(2), dim3(40), 0, nullptr); });
  EXPECT_TRUE(contains(text, "threads 30 to 39 ")) << text;
  EXPECT_TRUE(contains(text, "block (1, 0, 0)")) << text;
}

TEST_F(Barrier, waited_at_once_too_often_is_reported) {
  divergence("waits_once_too_often", [] { hipLaunchKernelGGL(waits_once_too_often, dim3(1), dim3(64), 0, nullptr); });
}

/// HIP's rule is one barrier for all: two in two branches hang some devices and not others.
TEST_F(Barrier, two_different_ones_in_two_branches_are_reported) {
  int* out = device_array<int>(8);
  hipLaunchKernelGGL(waits_in_both_branches, dim3(1), dim3(8), 0, nullptr, out);
  EXPECT_EQ(wait(), hipErrorLaunchFailure);
  const std::string text = take_report(hipsim::Report::barrier_not_reached);
  EXPECT_TRUE(contains(text, "waits_in_both_branches")) << text;
}

__global__ void waits_at_one_of_three() {
  if (threadIdx.x == 0 || threadIdx.x == 3) {
    __syncthreads();
  } else if (threadIdx.x <= 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
constexpr int three_barriers_end = __LINE__ - 2;
__global__ void waits_at_one_of_two_or_ends() {
  if (threadIdx.x == 0 || threadIdx.x == 3) {
    __syncthreads();
  } else if (threadIdx.x <= 2) {
    __syncthreads();
  }
}
constexpr int two_barriers_end = __LINE__ - 2;

TEST_F(Barrier, reports_say_of_each_thread_where_it_is) {
  const auto at = [](int line) { return std::string{__FILE__} + ":" + std::to_string(line); };
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    start_over();
    configure(seed);
    std::string text = divergence("waits_at_one_of_three",
                                  [] { hipLaunchKernelGGL(waits_at_one_of_three, dim3(1), dim3(8), 0, nullptr); });
    EXPECT_TRUE(contains(text, "threads 0, 3 wait at the barrier at " + at(three_barriers_end - 5) +
                                   ", threads 1 to 2 at the one at " + at(three_barriers_end - 3) +
                                   ", threads 4 to 7 at the one at " + at(three_barriers_end - 1)))
        << text;
    EXPECT_FALSE(contains(text, "ended")) << text;
    start_over();
    configure(seed);
    text = divergence("waits_at_one_of_two_or_ends",
                      [] { hipLaunchKernelGGL(waits_at_one_of_two_or_ends, dim3(1), dim3(8), 0, nullptr); });
    EXPECT_TRUE(contains(text, "threads 0, 3 wait at the barrier at " + at(two_barriers_end - 3) +
                                   ", threads 1 to 2 at the one at " + at(two_barriers_end - 1) +
                                   ", threads 4 to 7 have ended without one"))
        << text;
  }
}

TEST_F(Barrier, not_reached_is_reported_under_every_seed_and_mode) {
  for (const hipsim::Mode mode : {hipsim::Mode::lazy, hipsim::Mode::eager}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      start_over();
      configure(seed, mode);
      hipLaunchKernelGGL(leaves_out_thread_3, dim3(2), dim3(8), 0, nullptr);
      EXPECT_EQ(wait(), hipErrorLaunchFailure);
      EXPECT_FALSE(take_report(hipsim::Report::barrier_not_reached).empty());
    }
  }
}

__global__ void leaves_as_a_whole(int* out) {
  if (blockIdx.x == 0) return;
  __syncthreads();
  out[threadIdx.x] = 5;
}

TEST_F(Barrier, left_out_by_a_whole_block_is_no_mistake) {
  int* out = device_array<int>(8);
  hipLaunchKernelGGL(leaves_as_a_whole, dim3(2), dim3(8), 0, nullptr, out);
  EXPECT_EQ(host_copy(out, 8), std::vector<int>(8, 5));
}

TEST_F(Barrier, a_reported_kernel_fails_every_later_call_until_the_device_is_reset) {
  hipStream_t stream = make_stream();
  hipLaunchKernelGGL(leaves_out_thread_3, dim3(1), dim3(8), 0, stream);
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorLaunchFailure);
  EXPECT_FALSE(take_report(hipsim::Report::barrier_not_reached).empty());
  void* device = nullptr;
  EXPECT_EQ(hipMalloc(&device, 4), hipErrorLaunchFailure);
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorLaunchFailure);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  static_cast<void>(hipDeviceReset());
  EXPECT_TRUE(contains(take_report(hipsim::Report::leak), "stream"));
  static_cast<void>(hipGetLastError());
  must(hipMalloc(&device, 4));
  must(hipFree(device));
  hipLaunchKernelGGL(takes_nothing, dim3(1), dim3(8), 0, nullptr);
  must(wait());
}

// ---- stacks ---------------------------------------------------------------------------------------------------------

__global__ void meets_a_barrier() { __syncthreads(); }

std::size_t num_mappings() {
  std::ifstream maps{"/proc/self/maps"};
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>{maps}, {}, '\n'));
}

/// Mappings that come and go for other reasons: the allocator's, a sanitizer's.
constexpr std::size_t other_mappings = 64;

TEST_F(Kernel, needs_no_stack_of_its_own_without_a_barrier) {
  const std::size_t before = num_mappings();
  for (int i = 0; i < 10; ++i) hipLaunchKernelGGL(takes_nothing, dim3(4), dim3(1024), 0, nullptr);
  must(wait());
  EXPECT_LT(num_mappings(), before + other_mappings);
}

TEST_F(Barrier, stacks_are_used_again_after_kernels_that_ended_and_that_were_reported) {
  hipLaunchKernelGGL(meets_a_barrier, dim3(1), dim3(256), 0, nullptr);
  must(wait());
  const std::size_t before = num_mappings();
  for (int i = 0; i < 20; ++i) {
    start_over();
    hipLaunchKernelGGL(meets_a_barrier, dim3(4), dim3(256), 0, nullptr);
    must(wait());
    hipLaunchKernelGGL(leaves_out_thread_3, dim3(1), dim3(256), 0, nullptr);
    EXPECT_EQ(wait(), hipErrorLaunchFailure);
    EXPECT_FALSE(take_report(hipsim::Report::barrier_not_reached).empty());
  }
  EXPECT_LT(num_mappings(), before + other_mappings);
}

__global__ void needs_a_larger_stack(char* out, std::size_t first) {
  char frame[std::size_t{600} << 10];
  volatile char* const byte = frame + first;
  *byte = 1;
  __syncthreads();
  out[threadIdx.x] = *byte;
}

/// A frame that is larger than the stack does not end up in somebody else's.
TEST_F(Kernel, that_runs_out_of_stack_in_one_step_ends_the_process) {
  const auto overflow = [] {
    hipLaunchKernelGGL(needs_a_larger_stack, dim3(1), dim3(8), 0, nullptr, device_array<char>(8), std::size_t{0});
    static_cast<void>(hipDeviceSynchronize());
  };
  EXPECT_DEATH(overflow(), "");
}

// ---- lanes ----------------------------------------------------------------------------------------------------------

struct Lanes {
  int lane;
  int shuffled;
  int up;
  int down;
  int across;
  int width_8;
  unsigned long long ballot;
  int any_of_last;
  int all_below_40;
};

__global__ void tell_each_other(Lanes* out) {
  const int value = static_cast<int>(threadIdx.x) * 10;
  Lanes lanes{};
  lanes.lane = __lane_id();
  lanes.shuffled = __shfl(value, 5);
  lanes.up = __shfl_up(value, 2);
  lanes.down = __shfl_down(value, 2);
  lanes.across = __shfl_xor(value, 1);
  lanes.width_8 = __shfl(value, 9, 8);
  lanes.ballot = __ballot(threadIdx.x % 3 == 0);
  lanes.any_of_last = __any(threadIdx.x == blockDim.x - 1);
  lanes.all_below_40 = __all(threadIdx.x < 40);
  out[threadIdx.x] = lanes;
}

void expect_lanes(const std::vector<Lanes>& lanes, int warp) {
  const int count = static_cast<int>(lanes.size());
  for (int i = 0; i < count; ++i) {
    const Lanes& got = lanes[static_cast<std::size_t>(i)];
    const int first = i / warp * warp;
    const int lane = i - first;
    const int end = std::min(first + warp, count);
    unsigned long long ballot = 0;
    for (int j = first; j < end; ++j) ballot |= j % 3 == 0 ? 1ull << (j - first) : 0;
    ASSERT_EQ(got.lane, lane);
    ASSERT_EQ(got.shuffled, (first + 5) * 10);
    ASSERT_EQ(got.up, (lane >= 2 ? i - 2 : i) * 10);
    ASSERT_EQ(got.down, (lane + 2 < warp ? i + 2 : i) * 10);
    ASSERT_EQ(got.across, (i ^ 1) * 10);
    ASSERT_EQ(got.width_8, (i / 8 * 8 + 1) * 10);
    ASSERT_EQ(got.ballot, ballot);
    ASSERT_EQ(got.any_of_last, end == count ? 1 : 0);
    ASSERT_EQ(got.all_below_40, end <= 40 ? 1 : 0);
  }
}

TEST_F(Warp, lanes_tell_each_other_with_32_and_with_64_under_every_seed) {
  for (const int warp : {32, 64}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      configure(seed, hipsim::Mode::lazy, warp);
      Lanes* out = device_array<Lanes>(256);
      hipLaunchKernelGGL(tell_each_other, dim3(1), dim3(256), 0, nullptr, out);
      expect_lanes(host_copy(out, 256), warp);
      must(hipFree(out));
    }
  }
}

__global__ void ballot_all(unsigned long long* out) { out[threadIdx.x] = __ballot(1); }

TEST_F(Warp, a_warp_that_is_not_full_has_fewer_lanes) {
  unsigned long long* out = device_array<unsigned long long>(70);
  hipLaunchKernelGGL(ballot_all, dim3(1), dim3(70), 0, nullptr, out);
  const std::vector<unsigned long long> ballots = host_copy(out, 70);
  EXPECT_EQ(ballots[0], ~0ull);
  EXPECT_EQ(ballots[64], 0x3full);
  EXPECT_EQ(ballots[69], 0x3full);
}

__global__ void vote_in_branches(unsigned long long* out, int* all) {
  if (threadIdx.x >= 48) return;
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __ballot(1);
    all[threadIdx.x] = __all(threadIdx.x % 2 == 0);
  } else {
    out[threadIdx.x] = __ballot(threadIdx.x < 8);
    all[threadIdx.x] = __all(threadIdx.x < 8);
  }
}

TEST_F(Warp, only_the_lanes_of_a_branch_meet) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    configure(seed);
    unsigned long long* out = device_array<unsigned long long>(64);
    int* all = device_array<int>(64);
    hipLaunchKernelGGL(vote_in_branches, dim3(1), dim3(64), 0, nullptr, out, all);
    const std::vector<unsigned long long> ballots = host_copy(out, 48);
    const std::vector<int> alls = host_copy(all, 48);
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(ballots[i], i % 2 == 0 ? 0x555555555555ull : 0xaaull) << "lane " << i << ", seed " << seed;
      EXPECT_EQ(alls[i], i % 2 == 0 ? 1 : 0) << "lane " << i << ", seed " << seed;
    }
  }
}

/// How many lanes met, in each of three places.
struct Met {
  int inside = 0;
  int behind = 0;
  int at_end = 0;
  bool operator==(const Met&) const = default;
};

__global__ void meet_behind_a_branch(Met* out) {
  const int lane = __lane_id();
  Met met;
  if (lane < 16) met.inside = __popcll(__ballot(1));
  met.behind = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

__global__ void meet_behind_a_loop(Met* out) {
  const int lane = __lane_id();
  Met met;
  for (int i = 0; i < lane / 16; ++i) met.inside += __popcll(__ballot(1));
  met.behind = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

__global__ void meet_in_both_branches(Met* out) {
  const int lane = __lane_id();
  Met met;
  if (lane % 4 == 0) {
    met.inside = __popcll(__ballot(1));
  } else {
    met.inside = __popcll(__ballot(1));
    if (lane % 4 == 1) met.inside += 100 * __popcll(__ballot(1));
    met.behind = __popcll(__ballot(1));
  }
  met.at_end = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

/// Some go on and others stay in the loop, round by round.
__global__ void meet_in_a_loop_with_branches(Met* out) {
  const int lane = __lane_id();
  Met met;
  for (int i = 0; i < 4; ++i) {
    if (lane % 4 > i) met.inside += __popcll(__ballot(1));
    met.behind += __popcll(__ballot(1));
    if (lane / 16 == i) break;
  }
  met.at_end = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

/// What lane `lane` of a full warp sees.
template <class Expected>
void expect_met(void (*kernel)(Met*), Expected expected) {
  for (const int warp : {32, 64}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      configure(seed, hipsim::Mode::lazy, warp);
      Met* out = device_array<Met>(128);
      hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, nullptr, out);
      const std::vector<Met> met = host_copy(out, 128);
      for (int i = 0; i < 128; ++i) {
        const Met& got = met[static_cast<std::size_t>(i)];
        const Met want = expected(i % warp, warp);
        EXPECT_EQ(got, want) << "thread " << i << ", warps of " << warp << ", seed " << seed << ": " << got.inside
                             << ", " << got.behind << ", " << got.at_end;
      }
      must(hipFree(out));
    }
  }
}

TEST_F(Warp, is_together_again_behind_a_branch) {
  expect_met(meet_behind_a_branch, [](int lane, int warp) { return Met{lane < 16 ? 16 : 0, warp, 0}; });
}

TEST_F(Warp, is_together_again_behind_a_loop) {
  expect_met(meet_behind_a_loop, [](int lane, int warp) {
    Met met{0, warp, 0};
    for (int i = 0; i < lane / 16; ++i) met.inside += warp - 16 * (i + 1);
    return met;
  });
}

TEST_F(Warp, is_together_again_behind_two_branches) {
  expect_met(meet_in_both_branches, [](int lane, int warp) {
    if (lane % 4 == 0) return Met{warp / 4, 0, warp};
    return Met{warp * 3 / 4 + (lane % 4 == 1 ? 100 * warp / 4 : 0), warp * 3 / 4, warp};
  });
}

TEST_F(Warp, lanes_that_leave_a_loop_wait_for_the_others) {
  expect_met(meet_in_a_loop_with_branches, [](int lane, int warp) {
    Met met{0, 0, warp};
    for (int i = 0; i <= lane / 16; ++i) {
      const int there = warp - 16 * i;  // the others have left
      if (lane % 4 > i) met.inside += there * (3 - i) / 4;
      met.behind += there;
    }
    return met;
  });
}

__global__ void sum_by_shuffles(const int* values, int* out) {
  __shared__ int sums[32];
  int sum = values[threadIdx.x];
  for (int step = warpSize / 2; step > 0; step /= 2) sum += __shfl_down(sum, static_cast<unsigned int>(step));
  if (__lane_id() == 0) sums[static_cast<int>(threadIdx.x) / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int total = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / warpSize; ++warp) total += sums[warp];
  *out = total;
}

TEST_F(Warp, a_reduction_is_right_with_32_and_with_64) {
  int* values = device_copy(std::vector<int>(512, 2));
  int* out = device_array<int>(1);
  for (const int warp : {32, 64}) {
    configure(5, hipsim::Mode::lazy, warp);
    hipLaunchKernelGGL(sum_by_shuffles, dim3(1), dim3(512), 0, nullptr, values, out);
    EXPECT_EQ(host_copy(out, 1)[0], 1024);
  }
}

/// A kernel that takes 64 lanes for granted is right on one card and wrong on the next.
__global__ void count_lanes_up_to_64(int* out) { out[threadIdx.x] = __popcll(__ballot(1)) == 64; }

TEST_F(Warp, a_kernel_that_takes_64_lanes_for_granted_is_wrong_with_32) {
  for (const int warp : {32, 64}) {
    configure(0, hipsim::Mode::lazy, warp);
    int* out = device_array<int>(64);
    hipLaunchKernelGGL(count_lanes_up_to_64, dim3(1), dim3(64), 0, nullptr, out);
    EXPECT_EQ(host_copy(out, 64), std::vector<int>(64, warp == 64 ? 1 : 0));
  }
}

__global__ void shuffle_other_types(std::uint64_t* wide, double* real, signed char* narrow) {
  wide[threadIdx.x] = __shfl(0x123456789abcdefull + threadIdx.x, 1);
  real[threadIdx.x] = __shfl_xor(0.5 + threadIdx.x, 1);
  narrow[threadIdx.x] = __shfl_up(static_cast<signed char>(-2 - static_cast<int>(threadIdx.x)), 1);
}

TEST_F(Warp, shuffles_carry_every_width) {
  std::uint64_t* wide = device_array<std::uint64_t>(2);
  double* real = device_array<double>(2);
  signed char* narrow = device_array<signed char>(2);
  hipLaunchKernelGGL(shuffle_other_types, dim3(1), dim3(2), 0, nullptr, wide, real, narrow);
  EXPECT_EQ(host_copy(wide, 2), std::vector<std::uint64_t>(2, 0x123456789abcdf0ull));
  EXPECT_EQ(host_copy(real, 2), (std::vector<double>{1.5, 0.5}));
  EXPECT_EQ(host_copy(narrow, 2), (std::vector<signed char>{-2, -2}));
}

// ---- atomics --------------------------------------------------------------------------------------------------------

struct Cells {
  int added, subtracted, lowest, highest;
  unsigned int ored, anded, xored, wrapped_up, wrapped_down;
  unsigned long long wide;
  float real;
  double wide_real;
  int exchanged, winner;
};

__global__ void change_atomically(Cells* cells) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&cells->added, i);
  atomicSub(&cells->subtracted, 1);
  atomicMin(&cells->lowest, -i);
  atomicMax(&cells->highest, i);
  atomicOr(&cells->ored, 1u << (i % 8));
  atomicAnd(&cells->anded, ~(1u << (i % 8)));
  atomicXor(&cells->xored, static_cast<unsigned int>(i));
  atomicInc(&cells->wrapped_up, 9u);
  atomicDec(&cells->wrapped_down, 9u);
  atomicAdd(&cells->wide, 1ull << 33);
  atomicAdd(&cells->real, 0.5F);
  atomicAdd(&cells->wide_real, 0.25);
  atomicExch(&cells->exchanged, i);
  atomicCAS(&cells->winner, -1, i);
}

TEST_F(Atomic, operations_lose_nothing_between_threads_and_blocks) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    configure(seed);
    Cells start{};
    start.anded = 0xffffu;
    start.winner = -1;
    Cells* device = device_copy(std::vector<Cells>{start});
    hipLaunchKernelGGL(change_atomically, dim3(4), dim3(32), 0, nullptr, device);
    const Cells cells = host_copy(device, 1)[0];
    EXPECT_EQ(cells.added, 127 * 64);
    EXPECT_EQ(cells.subtracted, -128);
    EXPECT_EQ(cells.lowest, -127);
    EXPECT_EQ(cells.highest, 127);
    EXPECT_EQ(cells.ored, 0xffu);
    EXPECT_EQ(cells.anded, 0xff00u);
    EXPECT_EQ(cells.xored, 0u);
    EXPECT_EQ(cells.wrapped_up, 8u);
    EXPECT_EQ(cells.wrapped_down, 2u);
    EXPECT_EQ(cells.wide, 128ull << 33);
    EXPECT_EQ(cells.real, 64.0F);
    EXPECT_EQ(cells.wide_real, 32.0);
    EXPECT_GE(cells.winner, 0);
    EXPECT_LT(cells.winner, 128);
    EXPECT_LT(cells.exchanged, 128);
  }
}

__global__ void old_values(int* cell, int* old) {
  old[0] = atomicAdd(cell, 5);
  old[1] = atomicSub(cell, 2);
  old[2] = atomicExch(cell, 100);
  old[3] = atomicCAS(cell, 99, 1);
  old[4] = atomicCAS(cell, 100, 50);
  old[5] = atomicMax(cell, 60);
  old[6] = atomicMin(cell, 7);
}

TEST_F(Atomic, operations_answer_the_old_value) {
  int* cell = device_copy(std::vector<int>{1});
  int* old = device_array<int>(7);
  hipLaunchKernelGGL(old_values, dim3(1), dim3(1), 0, nullptr, cell, old);
  EXPECT_EQ(host_copy(old, 7), (std::vector<int>{1, 6, 4, 100, 100, 50, 60}));
  EXPECT_EQ(host_copy(cell, 1)[0], 7);
}

__global__ void add_without_atomic(int* cell) {
  const int before = *cell;
  __syncthreads();
  *cell = before + 1;
}

TEST_F(Atomic, addition_without_it_loses_updates) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  int* cell = device_copy(std::vector<int>{0});
  hipLaunchKernelGGL(add_without_atomic, dim3(1), dim3(64), 0, nullptr, cell);
  EXPECT_LT(host_copy(cell, 1)[0], 64);
}

// ---- shared memory --------------------------------------------------------------------------------------------------

__global__ void sum_in_static(const int* values, int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, values[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
__global__ void reverse_in_dynamic(T* values) {
  HIP_DYNAMIC_SHARED(T, copy);
  copy[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

TEST_F(Shared, static_memory_belongs_to_one_block) {
  int* values = device_copy(std::vector<int>(256, 1));
  int* out = device_array<int>(4);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    configure(seed);
    hipLaunchKernelGGL(sum_in_static, dim3(4), dim3(64), 0, nullptr, values, out);
    EXPECT_EQ(host_copy(out, 4), std::vector<int>(4, 64));
  }
}

TEST_F(Shared, dynamic_memory_has_the_size_of_the_launch) {
  double* values = device_copy(std::vector<double>{1, 2, 3});
  hipLaunchKernelGGL(reverse_in_dynamic<double>, dim3(1), dim3(3), 3 * sizeof(double), nullptr, values);
  EXPECT_EQ(host_copy(values, 3), (std::vector<double>{3, 2, 1}));
}

__global__ void dynamic_address(std::uintptr_t* out) {
  HIP_DYNAMIC_SHARED(double, values);
  *out = reinterpret_cast<std::uintptr_t>(values);
}

TEST_F(Shared, dynamic_memory_is_aligned_for_every_type) {
  std::uintptr_t* out = device_array<std::uintptr_t>(1);
  for (const std::size_t bytes : {8u, 12u, 1000u}) {
    hipLaunchKernelGGL(dynamic_address, dim3(1), dim3(1), bytes, nullptr, out);
    const std::uintptr_t address = host_copy(out, 1)[0];
    EXPECT_NE(address, 0u);
    EXPECT_EQ(address % 16, 0u);
  }
}

__global__ void read_before_writing(int* out) {
  __shared__ int left;
  HIP_DYNAMIC_SHARED(int, dynamic);
  out[2 * blockIdx.x] = left;
  out[2 * blockIdx.x + 1] = dynamic[0];
  left = 1234;
  dynamic[0] = 1234;
}

/// A block that reads what the one before left, or relies on zeros, is wrong on the device.
TEST_F(Shared, memory_holds_junk_when_a_block_starts) {
#if !defined(__clang__)
  GTEST_SKIP() << "g++ keeps shared memory apart from nothing: what a block finds is what the last one left";
#endif
  configure(3);
  int* out = device_array<int>(16);
  hipLaunchKernelGGL(read_before_writing, dim3(8), dim3(1), sizeof(int), nullptr, out);
  const std::vector<int> found = host_copy(out, 16);
  for (const int value : found) {
    EXPECT_NE(value, 1234);
    EXPECT_NE(value, 0);
  }
  start_over();
  configure(3);
  out = device_array<int>(16);
  hipLaunchKernelGGL(read_before_writing, dim3(8), dim3(1), sizeof(int), nullptr, out);
  EXPECT_EQ(host_copy(out, 16), found);
  start_over();
  configure(4);
  out = device_array<int>(16);
  hipLaunchKernelGGL(read_before_writing, dim3(8), dim3(1), sizeof(int), nullptr, out);
  EXPECT_NE(host_copy(out, 16), found);
}

// ---- launches -------------------------------------------------------------------------------------------------------

TEST_F(Launch, of_an_impossible_size_is_refused_and_counts_no_launch) {
  const auto error = [](dim3 grid, dim3 block, std::size_t shared_bytes = 0) {
    hipLaunchKernelGGL(takes_nothing, grid, block, shared_bytes, nullptr);
    EXPECT_FALSE(hipsim::last_message().empty());
    return hipGetLastError();
  };
  EXPECT_EQ(error(dim3(1), dim3(1025)), hipErrorInvalidConfiguration);
  EXPECT_TRUE(contains(hipsim::last_message(), "1025")) << hipsim::last_message();
  EXPECT_EQ(error(dim3(1), dim3(32, 33)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1), dim3(65536, 65536)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(0), dim3(1)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1, 0), dim3(1)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1), dim3(0)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1), dim3(1, 1, 0)), hipErrorInvalidConfiguration);
  int shared_bytes = 0;
  must(hipDeviceGetAttribute(&shared_bytes, hipDeviceAttributeMaxSharedMemoryPerBlock, 0));
  EXPECT_EQ(error(dim3(1), dim3(1), static_cast<std::size_t>(shared_bytes) + 1), hipErrorInvalidConfiguration);
  EXPECT_EQ(hipsim::counters().launches, 0);
}

TEST_F(Launch, of_the_greatest_size_is_accepted) {
  int shared_bytes = 0;
  must(hipDeviceGetAttribute(&shared_bytes, hipDeviceAttributeMaxSharedMemoryPerBlock, 0));
  hipLaunchKernelGGL(takes_nothing, dim3(2), dim3(16, 64), static_cast<std::size_t>(shared_bytes), nullptr);
  must(wait());
  EXPECT_EQ(hipsim::counters().launches, 1);
}

TEST_F(Launch, of_no_kernel_is_refused) {
  void (*const none)() = nullptr;
  hipLaunchKernelGGL(none, dim3(1), dim3(1), 0, nullptr);
  EXPECT_EQ(hipGetLastError(), hipErrorInvalidDeviceFunction);
  EXPECT_EQ(hipsim::counters().launches, 0);
}

__global__ void set_first(int* out) { *out = 1; }

TEST_F(Launch, leaves_an_earlier_error_in_place) {
  int* out = device_array<int>(1);
  void* device = nullptr;
  EXPECT_EQ(hipMalloc(&device, ~std::size_t{0}), hipErrorOutOfMemory);
  hipLaunchKernelGGL(set_first, dim3(1), dim3(1), 0, nullptr, out);
  EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(host_copy(out, 1)[0], 1);
}

// ---- the API from inside --------------------------------------------------------------------------------------------

hipError_t error_inside = hipSuccess;

__global__ void calls_the_api() { error_inside = hipDeviceSynchronize(); }
__global__ void configures_the_runtime() { error_inside = hipsim::configure({}) ? hipSuccess : hipErrorNotSupported; }
void calls_the_api_on_the_host(void* /*data*/) { error_inside = hipFree(nullptr); }

TEST_F(Kernel, an_api_call_inside_one_is_reported_with_its_name) {
  error_inside = hipSuccess;
  hipLaunchKernelGGL(calls_the_api, dim3(1), dim3(1), 0, nullptr);
  static_cast<void>(hipDeviceSynchronize());
  const std::string text = take_report(hipsim::Report::call_in_kernel);
  EXPECT_TRUE(contains(text, "calls_the_api")) << text;
  EXPECT_TRUE(contains(text, "hipDeviceSynchronize")) << text;
  EXPECT_NE(error_inside, hipSuccess);
}

TEST_F(Kernel, an_api_call_inside_a_host_function_is_reported) {
  error_inside = hipSuccess;
  must(hipLaunchHostFunc(nullptr, calls_the_api_on_the_host, nullptr));
  static_cast<void>(hipDeviceSynchronize());
  const std::string text = take_report(hipsim::Report::call_in_kernel);
  EXPECT_TRUE(contains(text, "hipFree")) << text;
  EXPECT_NE(error_inside, hipSuccess);
}

TEST_F(Kernel, configuring_inside_one_is_refused) {
  error_inside = hipSuccess;
  hipLaunchKernelGGL(configures_the_runtime, dim3(1), dim3(1), 0, nullptr);
  static_cast<void>(hipDeviceSynchronize());
  EXPECT_EQ(error_inside, hipErrorNotSupported);
  reports.clear();
}

TEST_F(Kernel, without_a_handler_a_report_ends_the_process) {
  EXPECT_DEATH(
      {
        hipsim::set_report_handler(nullptr);
        hipLaunchKernelGGL(leaves_out_thread_3, dim3(1), dim3(8), 0, nullptr);
        static_cast<void>(hipDeviceSynchronize());
      },
      "leaves_out_thread_3");
}

}  // namespace
