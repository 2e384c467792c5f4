// One seed, one run: repeated to the byte. Other seeds, other orders. Late or at once, a right program answers the
// same.
#include "runtime_test.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace {

using namespace hipsim_test;

class Seed : public Runtime {};
class Mode : public Runtime {};

constexpr std::uint64_t many_seeds = 16;

// ---- seeds ----------------------------------------------------------------------------------------------------------

/// Writes down who came when, before a barrier and after it.
__global__ void note_order(int* arrivals, int* order) {
  const int id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  order[atomicAdd(arrivals, 1)] = id;
  __syncthreads();
  order[atomicAdd(arrivals, 1)] = id;
}
__global__ void note_order_without_barrier(int* arrivals, int* order) {
  order[atomicAdd(arrivals, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

constexpr std::uint32_t blocks = 4;
constexpr std::uint32_t threads = 8;

std::vector<int> order_of_arrival(void (*kernel)(int*, int*), std::size_t arrivals_expected) {
  int* arrivals = device_copy(std::vector<int>{0});
  int* order = device_array<int>(arrivals_expected);
  hipLaunchKernelGGL(kernel, dim3(blocks), dim3(threads), 0, nullptr, arrivals, order);
  return host_copy(order, arrivals_expected);
}

std::vector<int> barrier_order() { return order_of_arrival(note_order, 2 * blocks * threads); }
std::vector<int> plain_order() { return order_of_arrival(note_order_without_barrier, blocks * threads); }

TEST_F(Seed, zero_is_the_plain_order) {
  std::vector<int> ascending(blocks * threads);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(plain_order(), ascending);
  std::vector<int> twice;
  for (int block = 0; block < static_cast<int>(blocks); ++block)
    for (int pass = 0; pass < 2; ++pass)
      for (int thread = 0; thread < static_cast<int>(threads); ++thread)
        twice.push_back(block * static_cast<int>(threads) + thread);
  EXPECT_EQ(barrier_order(), twice);
}

TEST_F(Seed, the_same_repeats_every_order) {
  for (std::uint64_t seed = 1; seed < many_seeds; ++seed) {
    start_over();
    configure(seed);
    const std::vector<int> with_barrier = barrier_order();
    const std::vector<int> plain = plain_order();
    start_over();
    configure(seed);
    EXPECT_EQ(barrier_order(), with_barrier);
    EXPECT_EQ(plain_order(), plain);
  }
}

TEST_F(Seed, others_give_other_orders_of_threads_and_of_blocks) {
  std::set<std::vector<int>> thread_orders;
  std::set<std::vector<int>> later_thread_orders;
  std::set<std::vector<int>> block_orders;
  for (std::uint64_t seed = 1; seed < many_seeds; ++seed) {
    configure(seed);
    const std::vector<int> order = barrier_order();
    std::vector<int> in_first;
    std::vector<int> first_of_block;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int block = order[i] / static_cast<int>(threads);
      if (block == 0) in_first.push_back(order[i]);
      if (i % (2 * threads) == 0) first_of_block.push_back(block);
    }
    ASSERT_EQ(in_first.size(), 2 * threads);
    thread_orders.emplace(in_first.begin(), in_first.begin() + threads);
    later_thread_orders.emplace(in_first.begin() + threads, in_first.end());
    block_orders.insert(first_of_block);
  }
  EXPECT_GT(thread_orders.size(), many_seeds / 2);
  EXPECT_GT(later_thread_orders.size(), many_seeds / 2);
  EXPECT_GT(block_orders.size(), many_seeds / 4);
}

TEST_F(Seed, others_give_other_orders_without_a_barrier) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed < many_seeds; ++seed) {
    configure(seed);
    orders.insert(plain_order());
  }
  EXPECT_GT(orders.size(), many_seeds / 2);
}

TEST_F(Seed, no_thread_passes_a_barrier_before_all_have_reached_it) {
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    configure(seed);
    const std::vector<int> order = barrier_order();
    std::map<int, std::vector<int>> of_block;
    for (const int id : order) of_block[id / static_cast<int>(threads)].push_back(id);
    for (const auto& [block, ids] : of_block) {
      ASSERT_EQ(ids.size(), 2 * threads);
      EXPECT_EQ(std::set<int>(ids.begin(), ids.begin() + threads).size(), threads) << "block " << block;
      EXPECT_EQ(std::set<int>(ids.begin() + threads, ids.end()).size(), threads) << "block " << block;
    }
  }
}

/// Everything at once: junk, streams, events, host functions, barriers, a mistake of order in the program itself.
std::vector<unsigned char> whole_run(std::uint64_t seed) {
  hipsim::reset();
  hipsim::set_report_handler(collect);
  configure(seed);
  unsigned char* junk = device_array<unsigned char>(33);
  int* arrivals = device_copy(std::vector<int>{0});
  int* order = device_array<int>(200);
  hipStream_t streams[3] = {};
  for (hipStream_t& stream : streams) {
    stream = make_stream(hipStreamNonBlocking);
    hipLaunchKernelGGL(note_order, dim3(blocks), dim3(threads), 0, stream, arrivals, order);
  }
  must(hipDeviceSynchronize());
  std::vector<unsigned char> bytes = host_copy(junk, 33);
  for (const int id : host_copy(order, 200)) {
    const auto* raw = reinterpret_cast<const unsigned char*>(&id);
    bytes.insert(bytes.end(), raw, raw + sizeof id);
  }
  return bytes;
}

TEST_F(Seed, the_same_repeats_a_whole_run_to_the_byte) {
  std::set<std::vector<unsigned char>> runs;
  for (std::uint64_t seed = 1; seed < many_seeds; ++seed) {
    const std::vector<unsigned char> run = whole_run(seed);
    EXPECT_EQ(whole_run(seed), run) << "seed " << seed;
    runs.insert(run);
  }
  EXPECT_EQ(runs.size(), many_seeds - 1);
}

/// Right only while blocks happen to run in ascending order.
__global__ void last_block_wins(int* out) { *out = static_cast<int>(blockIdx.x); }

TEST_F(Seed, a_kernel_that_relies_on_the_order_of_blocks_is_caught_by_some_seed) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  std::set<int> results;
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    configure(seed);
    int* out = device_array<int>(1);
    hipLaunchKernelGGL(last_block_wins, dim3(4), dim3(1), 0, nullptr, out);
    results.insert(host_copy(out, 1)[0]);
  }
  EXPECT_GT(results.size(), 1u);
}

// ---- lazy and eager -------------------------------------------------------------------------------------------------

__global__ void produce(int* values) { values[threadIdx.x] = static_cast<int>(threadIdx.x) * 3; }
__global__ void consume(const int* values, int* out) { out[threadIdx.x] = values[31 - threadIdx.x] + 1; }

/// Two streams and a result on the host; with every synchronisation, or without one of them.
struct Program {
  bool waits_for_event = true;
  bool waits_for_result = true;
};

__attribute__((no_sanitize("thread"))) int sum_without_looking(const int* values) {
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += values[i];
  return sum;
}

int run(const Program& program, std::uint64_t seed, hipsim::Mode mode) {
  hipsim::reset();
  hipsim::set_report_handler(collect);
  configure(seed, mode);
  int* values = device_copy(std::vector<int>(32, 0));
  // Written by a kernel, so that no copy hides it from the host before it is there.
  int* result = pinned_array<int>(32);
  std::fill(result, result + 32, 0);
  hipStream_t producer = make_stream(hipStreamNonBlocking);
  hipStream_t consumer = make_stream(hipStreamNonBlocking);
  hipEvent_t produced = make_event();
  hipLaunchKernelGGL(produce, dim3(1), dim3(32), 0, producer, values);
  must(hipEventRecord(produced, producer));
  if (program.waits_for_event) must(hipStreamWaitEvent(consumer, produced, 0));
  hipLaunchKernelGGL(consume, dim3(1), dim3(32), 0, consumer, values, result);
  if (program.waits_for_result) must(hipStreamSynchronize(consumer));
  const int sum = sum_without_looking(result);
  must(hipDeviceSynchronize());
  return sum;
}

constexpr int right_sum = 3 * 31 * 32 / 2 + 32;

TEST_F(Mode, lazy_and_eager_agree_on_a_program_that_synchronises) {
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    EXPECT_EQ(run({}, seed, hipsim::Mode::lazy), right_sum);
    EXPECT_EQ(run({}, seed, hipsim::Mode::eager), right_sum);
  }
}

TEST_F(Mode, lazy_shows_a_result_that_was_read_too_early_under_every_seed) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  Program program;
  program.waits_for_result = false;
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    EXPECT_EQ(run(program, seed, hipsim::Mode::eager), right_sum);
    EXPECT_NE(run(program, seed, hipsim::Mode::lazy), right_sum);
  }
}

TEST_F(Mode, lazy_shows_a_stream_that_does_not_wait_for_another) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  Program program;
  program.waits_for_event = false;
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    EXPECT_EQ(run(program, seed, hipsim::Mode::eager), right_sum);
    wrong += run(program, seed, hipsim::Mode::lazy) != right_sum ? 1 : 0;
  }
  // Nothing asks for the producer's work, so most seeds leave it until later.
  EXPECT_GT(wrong, static_cast<int>(many_seeds) / 4);
}

}  // namespace
