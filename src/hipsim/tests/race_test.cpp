// What ThreadSanitizer sees: every program with a race is reported, under every seed, late and at once; every program
// without is silent. The programs come in pairs, which differ in the synchronisation.
#include "runtime_test.hpp"

#include <algorithm>
#include <string>
#include <utility>

#if defined(HIPSIM_TEST_THREAD_SANITIZER)
extern "C" {
int __tsan_get_report_data(void* report, const char** description, int* count, int* stack_count, int* mop_count,
                           int* loc_count, int* mutex_count, int* thread_count, int* unique_tid_count,
                           void** sleep_trace, unsigned long trace_size);
int __tsan_get_report_mop(void* report, unsigned long index, int* tid, void** at, int* size, int* write, int* atomic,
                          void** trace, unsigned long trace_size);
void __sanitizer_symbolize_pc(void* pc, const char* format, char* out, unsigned long size);
}
#define HIPSIM_TEST_UNWATCHED __attribute__((no_sanitize("thread"), no_sanitize("coverage")))
#else
#define HIPSIM_TEST_UNWATCHED
#endif

namespace {

using namespace hipsim_test;

[[maybe_unused]] int num_races = 0;
/// Where the accesses of the first reports were made: return addresses, to be looked up after the report.
[[maybe_unused]] constexpr int max_places = 16;
[[maybe_unused]] void* places[max_places];
[[maybe_unused]] int num_places = 0;

}  // namespace

#if defined(HIPSIM_TEST_THREAD_SANITIZER)
// A report is what these tests are after: it does not fail the process, and equal ones are not left out.
extern "C" HIPSIM_TEST_UNWATCHED const char* __tsan_default_options() {
  return "exitcode=0:suppress_equal_stacks=0:suppress_equal_addresses=0";
}
extern "C" HIPSIM_TEST_UNWATCHED void __tsan_on_report(void* report) {
  ++num_races;
  const char* description = nullptr;
  void* sleep_trace[1] = {};
  int count = 0;
  int stacks = 0;
  int mops = 0;
  int locations = 0;
  int mutexes = 0;
  int threads = 0;
  int tids = 0;
  __tsan_get_report_data(report, &description, &count, &stacks, &mops, &locations, &mutexes, &threads, &tids,
                         sleep_trace, 1);
  for (int i = 0; i < mops && num_places < max_places; ++i) {
    void* trace[2] = {};
    void* at = nullptr;
    int tid = 0;
    int size = 0;
    int write = 0;
    int atomic = 0;
    __tsan_get_report_mop(report, static_cast<unsigned long>(i), &tid, &at, &size, &write, &atomic, trace, 2);
    if (trace[0] != nullptr) places[num_places++] = trace[0];
  }
}
#endif

namespace {

class Race : public Runtime {
 protected:
  void SetUp() override {
    Runtime::SetUp();
    num_races = 0;
    num_places = 0;
    if (!has_thread_sanitizer) GTEST_SKIP() << "built without ThreadSanitizer";
  }
  void TearDown() override {
    EXPECT_EQ(num_races, 0);
    Runtime::TearDown();
  }
  static int take_races() { return std::exchange(num_races, 0); }

  template <class Program>
  static void for_all_schedules(Program program, bool is_race) {
    for (const hipsim::Mode mode : {hipsim::Mode::lazy, hipsim::Mode::eager}) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        start_over();
        configure(seed, mode);
        program();
        must(hipDeviceSynchronize());
        const char* const how = mode == hipsim::Mode::lazy ? "lazy" : "eager";
        EXPECT_EQ(take_races() > 0, is_race) << "seed " << seed << ", " << how;
      }
    }
  }
  template <class Program>
  static void expect_race(Program program) {
    for_all_schedules(program, true);
  }
  template <class Program>
  static void expect_silence(Program program) {
    for_all_schedules(program, false);
  }

  /// Whether one of the accesses reported was made at this line of this file.
  static bool was_reported_at([[maybe_unused]] int line) {
#if defined(HIPSIM_TEST_THREAD_SANITIZER)
    for (int i = 0; i < num_places; ++i) {
      char text[512] = {};
      __sanitizer_symbolize_pc(places[i], "%s:%l:", text, sizeof text);
      if (contains(text, "race_test.cpp:" + std::to_string(line) + ":")) return true;
    }
#endif
    return false;
  }
};

// ---- within a block -------------------------------------------------------------------------------------------------

constexpr std::uint32_t threads = 8;

constexpr int shared_write_line = __LINE__ + 3;
__global__ void reverse_without_barrier(int* out) {
  __shared__ int values[threads];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[threads - 1 - threadIdx.x];
}
constexpr int shared_read_line = __LINE__ - 2;

__global__ void reverse_with_barrier(int* out) {
  __shared__ int values[threads];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[threads - 1 - threadIdx.x];
}

__global__ void reverse_in_dynamic(int* out, bool waits) {
  HIP_DYNAMIC_SHARED(int, values);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (waits) __syncthreads();
  out[threadIdx.x] = values[threads - 1 - threadIdx.x];
}

/// In the second round a thread overwrites what another may not have read yet.
__global__ void rotate(int* out, bool waits_before_writing) {
  __shared__ int values[threads];
  int mine = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    values[threadIdx.x] = mine;
    __syncthreads();
    mine = values[(threadIdx.x + 1) % threads];
    if (waits_before_writing) __syncthreads();
  }
  out[threadIdx.x] = mine;
}

/// Lanes exchange registers, which says nothing about memory.
__global__ void reverse_behind_shuffle(int* out, bool waits) {
  __shared__ int values[threads];
  values[threadIdx.x] = __shfl_xor(static_cast<int>(threadIdx.x), 1);
  if (waits) __syncthreads();
  const int lane = __shfl(static_cast<int>(threadIdx.x), 0);
  out[threadIdx.x] = values[threads - 1 - threadIdx.x] + lane;
}

__global__ void count_plainly(int* count) { *count += 1; }
__global__ void count_atomically(int* count) { atomicAdd(count, 1); }
__global__ void count_half_atomically(int* count) {
  if (threadIdx.x == 0)
    *count = 1;
  else
    atomicAdd(count, 1);
}

TEST_F(Race, a_missing_barrier_is_reported_with_both_lines) {
  int* out = device_array<int>(threads);
  hipLaunchKernelGGL(reverse_without_barrier, dim3(1), dim3(threads), 0, nullptr, out);
  must(hipDeviceSynchronize());
  EXPECT_GT(take_races(), 0);
  EXPECT_TRUE(was_reported_at(shared_write_line));
  EXPECT_TRUE(was_reported_at(shared_read_line));
}

TEST_F(Race, a_missing_barrier_is_reported_under_every_schedule) {
  expect_race([] {
    hipLaunchKernelGGL(reverse_without_barrier, dim3(1), dim3(threads), 0, nullptr, device_array<int>(threads));
  });
}

TEST_F(Race, a_barrier_orders_the_threads_of_a_block) {
  expect_silence(
      [] { hipLaunchKernelGGL(reverse_with_barrier, dim3(1), dim3(threads), 0, nullptr, device_array<int>(threads)); });
}

TEST_F(Race, dynamic_shared_memory_is_watched_too) {
  const auto run = [](bool waits) {
    hipLaunchKernelGGL(reverse_in_dynamic, dim3(1), dim3(threads), threads * sizeof(int), nullptr,
                       device_array<int>(threads), waits);
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

TEST_F(Race, memory_rewritten_in_the_next_round_needs_a_second_barrier) {
  const auto run = [](bool waits) {
    hipLaunchKernelGGL(rotate, dim3(1), dim3(threads), 0, nullptr, device_array<int>(threads), waits);
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

TEST_F(Race, shuffles_order_no_memory) {
  const auto run = [](bool waits) {
    hipLaunchKernelGGL(reverse_behind_shuffle, dim3(1), dim3(threads), 0, nullptr, device_array<int>(threads), waits);
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

TEST_F(Race, threads_that_add_to_one_word_need_atomics) {
  const auto run = [](void (*kernel)(int*)) {
    int* count = device_copy(std::vector<int>{0});
    hipLaunchKernelGGL(kernel, dim3(1), dim3(threads), 0, nullptr, count);
  };
  expect_race([&] { run(count_plainly); });
  expect_race([&] { run(count_half_atomically); });
  expect_silence([&] { run(count_atomically); });
}

// ---- between blocks -------------------------------------------------------------------------------------------------

__global__ void write_one_word(int* out) { out[0] = static_cast<int>(blockIdx.x); }
__global__ void write_a_word_each(int* out) { out[blockIdx.x] = static_cast<int>(blockIdx.x); }
/// A barrier orders the threads of its own block only.
__global__ void write_one_word_behind_barrier(int* out) {
  __syncthreads();
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);
  __syncthreads();
}
__global__ void read_the_block_before(int* out) {
  if (blockIdx.x > 0) out[blockIdx.x] = out[blockIdx.x - 1] + 1;
}
__global__ void sum_in_shared(int* out) {
  __shared__ int sums[threads];
  int locals[4] = {1, 2, 3, 4};
  int* const local = locals;
  sums[threadIdx.x] = local[threadIdx.x % 4];
  __syncthreads();
  if (threadIdx.x == 0) {
    int total = 0;
    for (const int sum : sums) total += sum;
    out[blockIdx.x] = total;
  }
}

TEST_F(Race, two_blocks_that_write_one_word_are_reported) {
  const auto run = [](void (*kernel)(int*), std::uint32_t block) {
    hipLaunchKernelGGL(kernel, dim3(4), dim3(block), 0, nullptr, device_array<int>(4));
  };
  expect_race([&] { run(write_one_word, 1); });
  expect_race([&] { run(write_one_word_behind_barrier, threads); });
  expect_race([&] { run(read_the_block_before, 1); });
  expect_silence([&] { run(write_a_word_each, 1); });
}

TEST_F(Race, blocks_may_add_to_one_word_atomically) {
  expect_silence([] {
    int* count = device_copy(std::vector<int>{0});
    hipLaunchKernelGGL(count_atomically, dim3(4), dim3(threads), 0, nullptr, count);
  });
}

/// Shared memory and stacks pass from one block to the next: they are other memory to each of them.
TEST_F(Race, blocks_that_have_the_same_shared_memory_in_turn_are_silent) {
  expect_silence([] {
    int* out = device_array<int>(16);
    hipLaunchKernelGGL(sum_in_shared, dim3(16), dim3(threads), 0, nullptr, out);
    hipLaunchKernelGGL(reverse_in_dynamic, dim3(1), dim3(threads), threads * sizeof(int), nullptr, out, true);
    hipLaunchKernelGGL(sum_in_shared, dim3(16), dim3(threads), 0, nullptr, out);
  });
}

[[gnu::noinline]] int descend(int depth) {
  volatile int frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = depth;
  const int below = depth > 0 ? descend(depth - 1) : 0;
  return below + frame[3];
}
__global__ void recurse(int* out, int depth) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = descend(depth) + static_cast<int>(threadIdx.x);
}
[[gnu::noinline]] void fill(volatile int* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = i;
}
__global__ void keep_a_large_frame(int* out, int count) {
  int frame[20 << 10];
  fill(frame, count);
  out[blockIdx.x * blockDim.x + threadIdx.x] = frame[threadIdx.x];
}

/// However deep, and also below one that has gone less deep.
TEST_F(Race, stacks_are_used_again_by_other_threads) {
  expect_silence([] {
    int* out = device_array<int>(4 * threads);
    for (const int depth : {2, 250, 10, 250}) {
      hipLaunchKernelGGL(recurse, dim3(4), dim3(threads), 0, nullptr, out, depth);
      hipLaunchKernelGGL(keep_a_large_frame, dim3(4), dim3(threads), 0, nullptr, out, depth * 80);
    }
  });
}

// ---- more threads than ThreadSanitizer keeps apart ------------------------------------------------------------------

/// Two threads, of the same block or of two, write one word. They are told by x, their blocks by y.
__global__ void write_one_word_twice(int* out, dim3 first, dim3 second) {
  __syncthreads();
  const auto is_me = [](const dim3& who) { return blockIdx.x == who.y && threadIdx.x == who.x; };
  if (is_me(first) || is_me(second)) *out = static_cast<int>(threadIdx.x);
  __syncthreads();
}

/// Whether one of a few launches shows it. Each deals the strands out anew, and hides one pair of threads of a block in
/// 64, of a large grid one in 16 and one pair of blocks in 4: ten that hide the same are one chance in a million.
bool is_race_found(std::uint32_t num_blocks, std::uint32_t num_threads, const dim3& first, const dim3& second) {
  int* out = device_array<int>(1);
  for (int launch = 0; launch < 10 && num_races == 0; ++launch) {
    hipLaunchKernelGGL(write_one_word_twice, dim3(num_blocks), dim3(num_threads), 0, nullptr, out, first, second);
    must(hipDeviceSynchronize());
  }
  return std::exchange(num_races, 0) > 0;
}

TEST_F(Race, any_two_threads_of_the_largest_block_are_told_apart) {
  for (const std::uint32_t block : {64u, 65u, 254u, 255u, 256u, 257u, 1024u})
    for (const std::uint32_t distance : {1u, 2u, 63u, 64u, 128u, 192u, 254u, 255u, 256u, 1023u})
      for (const std::uint32_t first : {0u, 1u, 31u, 700u})
        if (first + distance < block)
          EXPECT_TRUE(is_race_found(1, block, dim3(first, 0), dim3(first + distance, 0)))
              << "threads " << first << " and " << first + distance << " of " << block;
}

TEST_F(Race, threads_of_any_two_blocks_of_the_largest_size_are_told_apart) {
  for (const std::uint32_t block : {64u, 256u, 1024u})
    for (const std::uint32_t distance : {1u, 2u, 4u, 8u})
      for (const std::uint32_t thread : {0u, 50u})
        EXPECT_TRUE(is_race_found(9, block, dim3(thread, 0), dim3(thread, distance)))
            << "blocks 0 and " << distance << " of " << block << " threads";
  EXPECT_TRUE(is_race_found(9, 1024, dim3(17, 5), dim3(900, 5)));
}

/// One launch is enough where all threads have strands of their own.
TEST_F(Race, no_race_of_a_small_launch_is_lost) {
  int* out = device_array<int>(1);
  for (const std::uint32_t num_threads : {64u, 32u, 16u, 8u, 1u}) {
    const std::uint32_t num_blocks = 64 / num_threads;
    for (std::uint32_t i = 1; i < 16; ++i) {
      // All threads of the launch in a row: the i-th, and one that is farther away each time.
      const auto thread = [&](std::uint32_t at) { return dim3(at % num_threads, at / num_threads); };
      hipLaunchKernelGGL(write_one_word_twice, dim3(num_blocks), dim3(num_threads), 0, nullptr, out, thread(i),
                         thread(4 * i));
      must(hipDeviceSynchronize());
      EXPECT_GT(take_races(), 0) << num_blocks << " blocks of " << num_threads << ", pair " << i;
    }
  }
}

TEST_F(Race, three_streams_with_the_largest_blocks_are_told_apart) {
  int* out = device_array<int>(2);
  hipStream_t streams[3] = {};
  for (hipStream_t& stream : streams) stream = make_stream(hipStreamNonBlocking);
  for (const std::uint32_t thread : {0u, 1u, 255u, 800u}) {
    // The one in the middle has a word of its own.
    for (hipStream_t stream : streams)
      hipLaunchKernelGGL(write_one_word_twice, dim3(1), dim3(1024), 0, stream, out + (stream == streams[1] ? 1 : 0),
                         dim3(thread, 0), dim3(thread, 0));
    must(hipDeviceSynchronize());
    EXPECT_GT(take_races(), 0) << "thread " << thread;
  }
}

/// GPU threads are not all that ThreadSanitizer has to keep apart: where there are too many others, it is said.
TEST_F(Race, more_streams_than_can_be_told_apart_are_no_secret) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 260; ++i) make_stream();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "hipsim: more than 250 streams")) << said;
}

// ---- within a warp in lock step -------------------------------------------------------------------------------------

constexpr std::uint32_t warp_threads = 32;

/// `distance` away is another lane of the same warp, or of another.
__global__ void read_at_a_distance(int* out, unsigned int distance, bool waits) {
  __shared__ volatile int values[2 * warp_threads];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (waits) __syncthreads();
  out[threadIdx.x] = values[threadIdx.x ^ distance];
}

/// Between meetings as well.
__global__ void read_between_votes(int* out, unsigned int distance) {
  __shared__ volatile int values[2 * warp_threads];
  values[threadIdx.x] = __any(1);
  const int votes = __any(values[threadIdx.x ^ distance]);
  values[threadIdx.x] = votes;
  out[threadIdx.x] = votes;
}

template <class Launch>
void launch_in_warps(bool lockstep, Launch launch) {
  hipsim::Config config = hipsim::config();
  config.warp_size = warp_threads;
  config.lockstep = lockstep;
  EXPECT_TRUE(hipsim::configure(config));
  launch(device_array<int>(2 * warp_threads));
}

TEST_F(Race, lanes_in_lock_step_are_ordered_and_others_are_not) {
  for (const unsigned int distance : {1u, warp_threads - 1, warp_threads, 2 * warp_threads - 1}) {
    for (const bool lockstep : {false, true}) {
      for (const bool votes : {false, true}) {
        SCOPED_TRACE(distance);
        const bool is_race = !lockstep || distance >= warp_threads;
        for_all_schedules(
            [&] {
              launch_in_warps(lockstep, [&](int* out) {
                if (votes)
                  hipLaunchKernelGGL(read_between_votes, dim3(1), dim3(2 * warp_threads), 0, nullptr, out, distance);
                else
                  hipLaunchKernelGGL(read_at_a_distance, dim3(1), dim3(2 * warp_threads), 0, nullptr, out, distance,
                                     false);
              });
            },
            is_race);
      }
    }
  }
}

TEST_F(Race, a_barrier_orders_warps_in_lock_step_too) {
  expect_silence([] {
    launch_in_warps(true, [](int* out) {
      hipLaunchKernelGGL(read_at_a_distance, dim3(1), dim3(2 * warp_threads), 0, nullptr, out, warp_threads + 3u, true);
    });
  });
}

// ---- between streams ------------------------------------------------------------------------------------------------

__global__ void produce(int* values) { values[threadIdx.x] = static_cast<int>(threadIdx.x); }
__global__ void consume(const int* values, int* out) { out[threadIdx.x] = values[threads - 1 - threadIdx.x]; }

__global__ void leaves_out_thread_1() {
  if (threadIdx.x != 1) __syncthreads();
}

enum class Order { none, event, event_before_work, host_waits, one_stream };

void produce_and_consume(Order order) {
  int* values = device_array<int>(threads);
  int* out = device_array<int>(threads);
  hipStream_t producer = make_stream(hipStreamNonBlocking);
  hipStream_t consumer = order == Order::one_stream ? producer : make_stream(hipStreamNonBlocking);
  hipEvent_t event = make_event();
  if (order == Order::event_before_work) must(hipEventRecord(event, producer));
  hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, producer, values);
  if (order == Order::event) must(hipEventRecord(event, producer));
  if (order == Order::event || order == Order::event_before_work) must(hipStreamWaitEvent(consumer, event, 0));
  if (order == Order::host_waits) must(hipStreamSynchronize(producer));
  hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, consumer, values, out);
}

TEST_F(Race, two_streams_without_an_event_are_reported) {
  expect_race([] { produce_and_consume(Order::none); });
}
TEST_F(Race, an_event_recorded_before_the_work_orders_nothing) {
  expect_race([] { produce_and_consume(Order::event_before_work); });
}
TEST_F(Race, an_event_orders_two_streams) {
  expect_silence([] { produce_and_consume(Order::event); });
}
TEST_F(Race, a_host_that_waits_orders_two_streams) {
  expect_silence([] { produce_and_consume(Order::host_waits); });
}
TEST_F(Race, one_stream_orders_its_own_work) {
  expect_silence([] { produce_and_consume(Order::one_stream); });
}

/// Sets and copies within device memory return before they have run, and a stream may not wait for them.
TEST_F(Race, a_stream_that_does_not_wait_for_a_set_or_a_copy_is_reported) {
  const auto run = [](bool is_copy, unsigned int flags) {
    int* values = device_array<int>(threads);
    if (is_copy)
      must(hipMemcpy(values, device_array<int>(threads), threads * sizeof(int), hipMemcpyDeviceToDevice));
    else
      must(hipMemset(values, 0, threads * sizeof(int)));
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, make_stream(flags), values, device_array<int>(threads));
  };
  for (const bool is_copy : {false, true}) {
    expect_race([&] { run(is_copy, hipStreamNonBlocking); });
    expect_silence([&] { run(is_copy, hipStreamDefault); });
  }
}

/// A third kernel, of either stream, between the two that race orders nothing.
TEST_F(Race, kernels_in_between_do_not_hide_a_race) {
  for (const bool is_copy : {false, true}) {
    for (const bool is_with_producer : {false, true}) {
      expect_race([&] {
        int* values = device_array<int>(threads);
        int* pinned = pinned_array<int>(threads);
        int* out = device_array<int>(2 * threads);
        hipStream_t producer = make_stream(hipStreamNonBlocking);
        hipStream_t consumer = make_stream(hipStreamNonBlocking);
        std::fill(pinned, pinned + threads, 1);
        if (is_copy)
          must(hipMemcpyAsync(values, pinned, threads * sizeof(int), hipMemcpyHostToDevice, producer));
        else
          hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, producer, values);
        hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, is_with_producer ? producer : consumer, out);
        hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, consumer, values, out + threads);
      });
    }
  }
}

/// Threads of many launches are the same to ThreadSanitizer when their streams are, and only then.
TEST_F(Race, the_tenth_launch_is_watched_like_the_first) {
  const auto run = [](bool waits) {
    int* values = device_array<int>(threads);
    int* out = device_array<int>(threads);
    hipStream_t producer = make_stream(hipStreamNonBlocking);
    hipStream_t consumer = make_stream(hipStreamNonBlocking);
    hipEvent_t event = make_event();
    for (int i = 0; i < 300; ++i) {
      hipLaunchKernelGGL(reverse_with_barrier, dim3(1), dim3(threads), 0, producer, device_array<int>(threads));
      hipLaunchKernelGGL(reverse_with_barrier, dim3(1), dim3(threads), 0, consumer, device_array<int>(threads));
    }
    must(hipDeviceSynchronize());
    hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, producer, values);
    must(hipEventRecord(event, producer));
    if (waits) must(hipStreamWaitEvent(consumer, event, 0));
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, consumer, values, out);
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

TEST_F(Race, launches_of_one_stream_race_within_themselves_each_time) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* out = device_array<int>(threads);
  for (int i = 0; i < 4; ++i) {
    hipLaunchKernelGGL(reverse_with_barrier, dim3(1), dim3(threads), 0, stream, out);
    must(hipStreamSynchronize(stream));
    EXPECT_EQ(take_races(), 0);
    hipLaunchKernelGGL(reverse_without_barrier, dim3(1), dim3(threads), 0, stream, out);
    must(hipStreamSynchronize(stream));
    EXPECT_GT(take_races(), 0);
  }
}

__global__ void write_own_word(int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }

/// More than ThreadSanitizer can have at once.
TEST_F(Race, many_threads_of_many_streams_are_silent_and_fit) {
  for (int i = 0; i < 8; ++i) {
    hipStream_t stream = make_stream(hipStreamNonBlocking);
    hipLaunchKernelGGL(write_own_word, dim3(3), dim3(1024), 0, stream, device_array<int>(3 * 1024));
    must(hipStreamSynchronize(stream));
  }
}

/// What the runtime itself keeps between two launches is nobody's race.
TEST_F(Race, streams_that_share_nothing_are_silent) {
  expect_silence([] {
    for (int i = 0; i < 3; ++i) {
      hipStream_t stream = make_stream(hipStreamNonBlocking);
      hipLaunchKernelGGL(sum_in_shared, dim3(3), dim3(threads), 0, stream, device_array<int>(3));
      hipLaunchKernelGGL(reverse_in_dynamic, dim3(1), dim3(threads), threads * sizeof(int), stream,
                         device_array<int>(threads), true);
      for (const std::uint32_t block : {16u << i, 1u})
        hipLaunchKernelGGL(write_own_word, dim3(2), dim3(block), 0, stream, device_array<int>(2 * block));
    }
  });
}

TEST_F(Race, a_host_that_waits_for_the_device_waits_for_destroyed_streams_too) {
  expect_silence([] {
    int* values = device_array<int>(threads);
    hipStream_t stream = make_stream();
    hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, stream, values);
    must(hipStreamDestroy(stream));
    must(hipDeviceSynchronize());
    host_copy(values, threads);
  });
}

TEST_F(Race, a_report_is_handled_on_the_hosts_side) {
  hipStream_t stream = make_stream();
  hipLaunchKernelGGL(leaves_out_thread_1, dim3(1), dim3(threads), 0, stream);
  static_cast<void>(hipStreamQuery(stream));
  EXPECT_TRUE(contains(take_report(hipsim::Report::barrier_not_reached), "leaves_out_thread_1"));
}

TEST_F(Race, copies_and_sets_are_work_like_kernels) {
  const auto run = [](bool waits, bool is_copy) {
    int* values = device_array<int>(threads);
    int* pinned = pinned_array<int>(threads);
    std::fill(pinned, pinned + threads, 1);
    hipStream_t producer = make_stream(hipStreamNonBlocking);
    hipStream_t consumer = make_stream(hipStreamNonBlocking);
    hipEvent_t event = make_event();
    if (is_copy)
      must(hipMemcpyAsync(values, pinned, threads * sizeof(int), hipMemcpyHostToDevice, producer));
    else
      must(hipMemsetAsync(values, 0, threads * sizeof(int), producer));
    must(hipEventRecord(event, producer));
    if (waits) must(hipStreamWaitEvent(consumer, event, 0));
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, consumer, values, device_array<int>(threads));
  };
  for (const bool is_copy : {false, true}) {
    expect_race([&] { run(false, is_copy); });
    expect_silence([&] { run(true, is_copy); });
  }
}

TEST_F(Race, the_null_stream_orders_blocking_streams_alone) {
  const auto run = [](unsigned int flags) {
    int* values = device_array<int>(threads);
    hipStream_t consumer = make_stream(flags);
    hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, nullptr, values);
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, consumer, values, device_array<int>(threads));
  };
  expect_race([&] { run(hipStreamNonBlocking); });
  expect_silence([&] { run(hipStreamDefault); });
}

TEST_F(Race, branches_of_a_graph_are_ordered_by_their_joins) {
  const auto run = [](bool joins_before_reading) {
    int* values = device_array<int>(threads);
    int* out = device_array<int>(threads);
    hipStream_t stream = make_stream();
    hipStream_t side = make_stream();
    hipEvent_t fork = make_event();
    hipEvent_t join = make_event();
    must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    must(hipEventRecord(fork, stream));
    must(hipStreamWaitEvent(side, fork, 0));
    hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, side, values);
    must(hipEventRecord(join, side));
    if (joins_before_reading) must(hipStreamWaitEvent(stream, join, 0));
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, stream, values, out);
    must(hipStreamWaitEvent(stream, join, 0));
    hipGraph_t graph = nullptr;
    hipGraphExec_t exec = nullptr;
    must(hipStreamEndCapture(stream, &graph));
    must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
    must(hipGraphLaunch(exec, stream));
    must(hipGraphLaunch(exec, stream));
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

// ---- between host and device ----------------------------------------------------------------------------------------

enum class Wait { none, stream, event, device, poll_stream, poll_event, blocking_copy };

void wait_for(Wait wait, hipStream_t stream, hipEvent_t event) {
  int host = 0;
  if (wait == Wait::stream) must(hipStreamSynchronize(stream));
  if (wait == Wait::event) must(hipEventSynchronize(event));
  if (wait == Wait::device) must(hipDeviceSynchronize());
  while (wait == Wait::poll_stream && hipStreamQuery(stream) == hipErrorNotReady) {
  }
  while (wait == Wait::poll_event && hipEventQuery(event) == hipErrorNotReady) {
  }
  if (wait == Wait::blocking_copy) must(hipMemcpy(&host, device_copy(std::vector<int>{1}), 4, hipMemcpyDeviceToHost));
}

constexpr Wait every_wait[] = {Wait::stream,      Wait::event,      Wait::device,
                               Wait::poll_stream, Wait::poll_event, Wait::blocking_copy};

int sum_of(const int* values) {
  int sum = 0;
  for (std::uint32_t i = 0; i < threads; ++i) sum += values[i];
  return sum;
}

void read_result_of_kernel(Wait wait) {
  int* result = pinned_array<int>(threads);
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, stream, result);
  must(hipEventRecord(event, stream));
  wait_for(wait, stream, event);
  volatile int sum = sum_of(result);
  static_cast<void>(sum);
}

TEST_F(Race, a_host_that_reads_a_kernels_result_without_waiting_is_reported) {
  expect_race([] { read_result_of_kernel(Wait::none); });
}

TEST_F(Race, every_way_of_waiting_orders_the_host_behind_the_stream) {
  for (const Wait wait : every_wait) {
    SCOPED_TRACE(static_cast<int>(wait));
    expect_silence([&] { read_result_of_kernel(wait); });
  }
}

void read_result_of_copy(Wait wait) {
  int* device = device_copy(std::vector<int>(threads, 3));
  int* result = pinned_array<int>(threads);
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  must(hipMemcpyAsync(result, device, threads * sizeof(int), hipMemcpyDeviceToHost, stream));
  must(hipEventRecord(event, stream));
  wait_for(wait, stream, event);
  volatile int sum = sum_of(result);
  static_cast<void>(sum);
}

TEST_F(Race, a_host_that_reads_a_copys_result_without_waiting_is_reported) {
  expect_race([] { read_result_of_copy(Wait::none); });
}

TEST_F(Race, a_host_that_waits_for_a_copy_is_silent) {
  for (const Wait wait : every_wait) {
    SCOPED_TRACE(static_cast<int>(wait));
    expect_silence([&] { read_result_of_copy(wait); });
  }
}

void rewrite_staging(Wait wait) {
  int* staging = pinned_array<int>(threads);
  int* device = device_array<int>(threads);
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  std::fill(staging, staging + threads, 1);
  must(hipMemcpyAsync(device, staging, threads * sizeof(int), hipMemcpyHostToDevice, stream));
  must(hipEventRecord(event, stream));
  wait_for(wait, stream, event);
  staging[3] = 2;
}

TEST_F(Race, pinned_memory_rewritten_before_its_copy_ran_is_reported) {
  expect_race([] { rewrite_staging(Wait::none); });
}

TEST_F(Race, pinned_memory_rewritten_after_its_copy_is_silent) {
  for (const Wait wait : every_wait) {
    SCOPED_TRACE(static_cast<int>(wait));
    expect_silence([&] { rewrite_staging(wait); });
  }
}

/// What the host wrote before it queued the work is there for the work.
TEST_F(Race, a_launch_is_behind_what_the_host_did_before) {
  expect_silence([] {
    int* pinned = pinned_array<int>(threads);
    int* out = device_array<int>(threads);
    hipStream_t stream = make_stream();
    std::fill(pinned, pinned + threads, 1);
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, stream, pinned, out);
    hipLaunchKernelGGL(consume, dim3(1), dim3(threads), 0, stream, pinned, out);
  });
}

TEST_F(Race, a_host_function_is_work_of_its_stream) {
  const auto run = [](bool waits) {
    int* value = pinned_array<int>(1);
    *value = 0;
    hipStream_t stream = make_stream();
    must(hipLaunchHostFunc(
        stream, [](void* at) { *static_cast<int*>(at) += 1; }, value));
    hipLaunchKernelGGL(count_plainly, dim3(1), dim3(1), 0, stream, value);
    if (waits) must(hipStreamSynchronize(stream));
    *value += 1;
  };
  expect_race([&] { run(false); });
  expect_silence([&] { run(true); });
}

TEST_F(Race, memory_that_is_allocated_again_is_other_memory) {
  expect_silence([] {
    for (int i = 0; i < 3; ++i) {
      int* values = device_array<int>(threads);
      hipStream_t stream = make_stream(hipStreamNonBlocking);
      hipLaunchKernelGGL(produce, dim3(1), dim3(threads), 0, stream, values);
      must(hipStreamSynchronize(stream));
      must(hipFree(values));
      must(hipStreamDestroy(stream));
    }
  });
}

}  // namespace
