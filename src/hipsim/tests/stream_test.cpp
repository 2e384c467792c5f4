// Streams, events, host functions, errors and the device: what waits for what, and when it runs.
#include "runtime_test.hpp"

#include <string_view>

namespace {

using namespace hipsim_test;

class Stream : public Runtime {
 protected:
  void SetUp() override {
    Runtime::SetUp();
    log.clear();
  }
  static std::string log;
  /// Queues a host function that adds a letter to the log.
  static void say(hipStream_t stream, const char* letter, HIPSIM_PLACE) {
    must(hipLaunchHostFunc(stream, append, const_cast<char*>(letter), place), place);
  }
  static void append(void* letter) { log += static_cast<const char*>(letter); }
};
std::string Stream::log;

class Event : public Stream {};
class Device : public Runtime {};

__global__ void set_to(int* at, int value) { *at = value; }
__global__ void double_it(int* at) { *at *= 2; }
__global__ void add(int* at, int value) { *at += value; }

// ---- one stream -----------------------------------------------------------------------------------------------------

TEST_F(Stream, host_functions_run_in_order_among_kernels_and_copies) {
  hipStream_t stream = make_stream();
  int* device = device_array<int>(1);
  int* pinned = pinned_array<int>(1);
  *pinned = 0;
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 20);
  say(stream, "a");
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, device, 1);
  hipLaunchKernelGGL(double_it, dim3(1), dim3(1), 0, stream, device);
  must(hipMemcpyAsync(pinned, device, 4, hipMemcpyDeviceToHost, stream));
  say(stream, "b");
  say(stream, "c");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "abc");
  EXPECT_EQ(*pinned, 42);
}

TEST_F(Stream, lazy_work_waits_until_somebody_waits_for_it) {
  hipStream_t stream = make_stream();
  say(stream, "a");
  device_array<int>(1);
  hipStream_t other = make_stream(hipStreamNonBlocking);
  must(hipStreamSynchronize(other));
  EXPECT_EQ(log, "");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "a");
}

TEST_F(Stream, eager_work_runs_in_the_call_that_queues_it) {
  configure(0, hipsim::Mode::eager);
  hipStream_t stream = make_stream();
  say(stream, "a");
  EXPECT_EQ(log, "a");
}

TEST_F(Stream, configuring_finishes_what_is_queued) {
  hipStream_t stream = make_stream();
  say(stream, "a");
  configure(3);
  EXPECT_EQ(log, "a");
  say(stream, "b");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "ab");
}

TEST_F(Stream, resetting_drops_what_is_queued) {
  say(make_stream(), "a");
  start_over();
  must(hipDeviceSynchronize());
  EXPECT_EQ(log, "");
}

TEST_F(Stream, asking_again_and_again_makes_progress) {
  hipStream_t stream = make_stream();
  must(hipStreamQuery(stream));
  for (int i = 0; i < 10; ++i) say(stream, "x");
  EXPECT_EQ(hipStreamQuery(stream), hipErrorNotReady);
  int asked = 1;
  while (hipStreamQuery(stream) == hipErrorNotReady && asked < 1000) ++asked;
  EXPECT_LT(asked, 1000);
  EXPECT_EQ(log, "xxxxxxxxxx");
}

TEST_F(Stream, not_ready_is_no_failure) {
  hipStream_t stream = make_stream();
  say(stream, "a");
  EXPECT_EQ(hipStreamQuery(stream), hipErrorNotReady);
  must(hipStreamSynchronize(stream));
  must(hipStreamQuery(stream));
}

TEST_F(Stream, a_destroyed_stream_finishes_its_work) {
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{1});
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  say(stream, "a");
  must(hipStreamDestroy(stream));
  must(hipDeviceSynchronize());
  EXPECT_EQ(log, "a");
  EXPECT_EQ(host_copy(device, 1)[0], 5);
}

TEST_F(Stream, a_destroyed_stream_is_refused) {
  hipStream_t stream = make_stream();
  int* device = device_array<int>(1);
  must(hipStreamDestroy(stream));
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamQuery(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamDestroy(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipMemsetAsync(device, 0, 4, stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipLaunchHostFunc(stream, append, nullptr), hipErrorInvalidHandle);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  EXPECT_EQ(hipGetLastError(), hipErrorInvalidHandle);
}

TEST_F(Stream, the_null_stream_cannot_be_destroyed) { EXPECT_EQ(hipStreamDestroy(nullptr), hipErrorInvalidHandle); }

TEST_F(Stream, bad_arguments_are_refused) {
  hipStream_t stream = nullptr;
  EXPECT_EQ(hipStreamCreate(nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipStreamCreateWithFlags(&stream, 0x80), hipErrorInvalidValue);
  EXPECT_EQ(hipLaunchHostFunc(nullptr, nullptr, nullptr), hipErrorInvalidValue);
  EXPECT_EQ(stream, nullptr);
}

// ---- several streams ------------------------------------------------------------------------------------------------

TEST_F(Stream, waiting_for_one_stream_leaves_the_others_alone) {
  hipStream_t first = make_stream();
  hipStream_t second = make_stream();
  say(first, "a");
  say(second, "b");
  must(hipStreamSynchronize(second));
  EXPECT_EQ(log, "b");
  must(hipDeviceSynchronize());
  EXPECT_EQ(log, "ba");
}

TEST_F(Stream, the_null_stream_waits_for_blocking_streams_and_they_for_it) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    log.clear();
    configure(seed);
    hipStream_t before = make_stream();
    hipStream_t after = make_stream();
    say(before, "a");
    say(nullptr, "b");
    say(after, "c");
    must(hipStreamSynchronize(after));
    EXPECT_EQ(log, "abc") << "seed " << seed;
  }
}

TEST_F(Stream, a_non_blocking_stream_does_not_wait_for_the_null_stream) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  say(nullptr, "a");
  say(stream, "b");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "b");
  say(stream, "c");
  must(hipStreamSynchronize(nullptr));
  EXPECT_EQ(log, "ba");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "bac");
}

TEST_F(Stream, a_blocking_copy_sees_what_a_blocking_stream_made) {
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{1});
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  EXPECT_EQ(host_copy(device, 1)[0], 5);
}

TEST_F(Stream, a_blocking_copy_does_not_wait_for_a_non_blocking_stream) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* device = device_copy(std::vector<int>{1});
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  EXPECT_EQ(host_copy(device, 1)[0], 1);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(host_copy(device, 1)[0], 5);
}

TEST_F(Stream, streams_that_do_not_wait_run_in_both_orders) {
  bool has_first_first = false;
  bool has_second_first = false;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    log.clear();
    configure(seed);
    hipStream_t first = make_stream();
    hipStream_t second = make_stream();
    say(first, "a");
    say(second, "b");
    must(hipDeviceSynchronize());
    has_first_first |= log == "ab";
    has_second_first |= log == "ba";
    EXPECT_EQ(log.size(), 2u);
  }
  EXPECT_TRUE(has_first_first);
  EXPECT_TRUE(has_second_first);
}

// ---- events ---------------------------------------------------------------------------------------------------------

TEST_F(Event, is_not_ready_until_the_work_before_it_is_done) {
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  say(stream, "a");
  must(hipEventRecord(event, stream));
  say(stream, "b");
  EXPECT_EQ(hipEventQuery(event), hipErrorNotReady);
  must(hipEventSynchronize(event));
  must(hipEventQuery(event));
  EXPECT_EQ(log, "a");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "ab");
}

TEST_F(Event, asking_again_and_again_makes_progress) {
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  say(stream, "a");
  must(hipEventRecord(event, stream));
  int asked = 0;
  while (hipEventQuery(event) == hipErrorNotReady && asked < 1000) ++asked;
  EXPECT_LT(asked, 1000);
  EXPECT_EQ(log, "a");
}

TEST_F(Event, never_recorded_counts_as_done) {
  hipEvent_t event = make_event();
  hipStream_t stream = make_stream();
  must(hipEventQuery(event));
  must(hipEventSynchronize(event));
  must(hipStreamWaitEvent(stream, event, 0));
  say(stream, "a");
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(log, "a");
}

TEST_F(Event, orders_two_streams_under_every_seed) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    log.clear();
    configure(seed);
    hipStream_t first = make_stream(hipStreamNonBlocking);
    hipStream_t second = make_stream(hipStreamNonBlocking);
    hipEvent_t event = make_event();
    say(first, "a");
    must(hipEventRecord(event, first));
    must(hipStreamWaitEvent(second, event, 0));
    say(second, "b");
    must(hipStreamSynchronize(second));
    EXPECT_EQ(log, "ab") << "seed " << seed;
  }
}

/// A wait is for the record that came before it, not for later ones.
TEST_F(Event, a_wait_means_the_last_record_before_it) {
  hipStream_t first = make_stream();
  hipStream_t second = make_stream();
  hipEvent_t event = make_event();
  say(first, "a");
  must(hipEventRecord(event, first));
  must(hipStreamWaitEvent(second, event, 0));
  say(second, "b");
  say(first, "c");
  must(hipEventRecord(event, first));
  must(hipStreamSynchronize(second));
  EXPECT_EQ(log, "ab");
  EXPECT_EQ(hipEventQuery(event), hipErrorNotReady);
  must(hipEventSynchronize(event));
  EXPECT_EQ(log, "abc");
}

TEST_F(Event, destroyed_early_still_orders_what_was_queued) {
  hipStream_t first = make_stream();
  hipStream_t second = make_stream();
  hipEvent_t event = make_event();
  say(first, "a");
  must(hipEventRecord(event, first));
  must(hipStreamWaitEvent(second, event, 0));
  must(hipEventDestroy(event));
  say(second, "b");
  must(hipStreamSynchronize(second));
  EXPECT_EQ(log, "ab");
  EXPECT_EQ(hipEventQuery(event), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventDestroy(event), hipErrorInvalidHandle);
}

TEST_F(Event, elapsed_time_counts_operations) {
  hipStream_t stream = make_stream();
  hipEvent_t start = make_event();
  hipEvent_t stop = make_event();
  float milliseconds = -1;
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipErrorInvalidHandle);
  must(hipEventRecord(start, stream));
  for (int i = 0; i < 100; ++i) say(stream, "x");
  must(hipEventRecord(stop, stream));
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipErrorNotReady);
  must(hipEventSynchronize(stop));
  must(hipEventElapsedTime(&milliseconds, start, stop));
  EXPECT_GE(milliseconds, 0.1F);
  EXPECT_LE(milliseconds, 0.11F);
}

TEST_F(Event, without_timing_has_no_elapsed_time) {
  hipEvent_t start = nullptr;
  must(hipEventCreateWithFlags(&start, hipEventDisableTiming));
  hipEvent_t stop = make_event();
  must(hipEventRecord(start));
  must(hipEventRecord(stop));
  must(hipEventSynchronize(stop));
  float milliseconds = -1;
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipErrorInvalidHandle);
}

TEST_F(Event, bad_arguments_are_refused) {
  EXPECT_EQ(hipEventCreate(nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipEventRecord(nullptr), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventQuery(nullptr), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventSynchronize(nullptr), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamWaitEvent(nullptr, nullptr, 0), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventDestroy(nullptr), hipErrorInvalidHandle);
}

// ---- the last error -------------------------------------------------------------------------------------------------

TEST_F(Stream, the_last_error_is_told_once_and_peeking_leaves_it) {
  EXPECT_EQ(hipGetLastError(), hipSuccess);
  void* device = nullptr;
  EXPECT_EQ(hipMalloc(&device, ~std::size_t{0}), hipErrorOutOfMemory);
  must(hipDeviceSynchronize());
  EXPECT_EQ(hipPeekAtLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(hipPeekAtLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
  EXPECT_EQ(hipPeekAtLastError(), hipSuccess);
}

TEST_F(Stream, errors_have_their_names_and_texts) {
  EXPECT_EQ(std::string_view{hipGetErrorName(hipSuccess)}, "hipSuccess");
  EXPECT_EQ(std::string_view{hipGetErrorString(hipSuccess)}, "no error");
  EXPECT_EQ(std::string_view{hipGetErrorName(hipErrorOutOfMemory)}, "hipErrorOutOfMemory");
  EXPECT_EQ(std::string_view{hipGetErrorString(hipErrorOutOfMemory)}, "out of memory");
  EXPECT_NE(hipGetErrorName(static_cast<hipError_t>(777)), nullptr);
  EXPECT_NE(hipGetErrorString(static_cast<hipError_t>(777)), nullptr);
}

// ---- the device -----------------------------------------------------------------------------------------------------

TEST_F(Device, properties_agree_with_attributes_and_configuration) {
  for (const int warp : {32, 64}) {
    configure(0, hipsim::Mode::lazy, warp);
    hipDeviceProp_t properties{};
    must(hipGetDeviceProperties(&properties, 0));
    EXPECT_EQ(properties.warpSize, warp);
    EXPECT_EQ(properties.maxThreadsPerBlock, 1024);
    EXPECT_EQ(properties.totalGlobalMem, hipsim::config().device_memory_bytes);
    EXPECT_NE(properties.name[0], '\0');
    int value = 0;
    must(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 0));
    EXPECT_EQ(value, warp);
    must(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxThreadsPerBlock, 0));
    EXPECT_EQ(value, 1024);
    must(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxSharedMemoryPerBlock, 0));
    EXPECT_EQ(static_cast<std::size_t>(value), properties.sharedMemPerBlock);
    must(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, 0));
    EXPECT_EQ(value, properties.multiProcessorCount);
  }
}

TEST_F(Device, one_is_there_and_the_second_is_refused) {
  int count = 0;
  int device = -1;
  hipDeviceProp_t properties{};
  must(hipInit(0));
  must(hipGetDeviceCount(&count));
  EXPECT_EQ(count, 1);
  must(hipSetDevice(0));
  must(hipGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_EQ(hipSetDevice(1), hipErrorInvalidDevice);
  EXPECT_EQ(hipSetDevice(-1), hipErrorInvalidDevice);
  EXPECT_EQ(hipGetDeviceProperties(&properties, 1), hipErrorInvalidDevice);
  EXPECT_EQ(hipGetDeviceCount(nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipGetDevice(nullptr), hipErrorInvalidValue);
}

TEST_F(Device, versions_are_told) {
  int version = 0;
  must(hipRuntimeGetVersion(&version));
  EXPECT_GT(version, 0);
  must(hipDriverGetVersion(&version));
  EXPECT_GT(version, 0);
}

TEST_F(Device, without_a_device_every_call_says_so) {
  hipsim::Config config;
  config.num_devices = 0;
  ASSERT_TRUE(hipsim::configure(config));
  int count = -1;
  EXPECT_EQ(hipGetDeviceCount(&count), hipErrorNoDevice);
  EXPECT_EQ(count, 0);
  void* device = nullptr;
  hipStream_t stream = nullptr;
  hipEvent_t event = nullptr;
  EXPECT_EQ(hipSetDevice(0), hipErrorNoDevice);
  EXPECT_EQ(hipMalloc(&device, 4), hipErrorNoDevice);
  EXPECT_EQ(hipHostMalloc(&device, 4), hipErrorNoDevice);
  EXPECT_EQ(hipMemset(&count, 0, 4), hipErrorNoDevice);
  EXPECT_EQ(hipStreamCreate(&stream), hipErrorNoDevice);
  EXPECT_EQ(hipEventCreate(&event), hipErrorNoDevice);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorNoDevice);
  EXPECT_EQ(hipStreamSynchronize(nullptr), hipErrorNoDevice);
  static_cast<void>(hipGetLastError());
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, &count, 5);
  EXPECT_EQ(hipGetLastError(), hipErrorNoDevice);
  EXPECT_EQ(count, 0);
}

TEST_F(Device, configurations_out_of_range_are_refused_and_change_nothing) {
  const auto accepts = [](auto change) {
    hipsim::Config config;
    change(config);
    return hipsim::configure(config);
  };
  configure(7);
  EXPECT_FALSE(accepts([](hipsim::Config& config) { config.warp_size = 16; }));
  EXPECT_FALSE(accepts([](hipsim::Config& config) { config.warp_size = 0; }));
  EXPECT_FALSE(accepts([](hipsim::Config& config) { config.num_devices = -1; }));
  EXPECT_FALSE(accepts([](hipsim::Config& config) { config.rules = static_cast<hipsim::Rules>(2); }));
  EXPECT_EQ(hipsim::config().seed, 7u);
  EXPECT_EQ(hipsim::config().warp_size, 64);
  EXPECT_TRUE(accepts([](hipsim::Config& config) { config.warp_size = 32; }));
}

TEST_F(Device, configuring_keeps_memory_streams_and_events) {
  int* device = device_copy(std::vector<int>{3});
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  configure(9);
  EXPECT_EQ(host_copy(device, 1)[0], 3);
  must(hipEventRecord(event, stream));
  must(hipEventSynchronize(event));
}

// ---- one buffer for both ways ---------------------------------------------------------------------------------------

__global__ void double_in_place(int* values) { values[threadIdx.x] *= 2; }

class OneBuffer : public Runtime, public testing::WithParamInterface<bool> {};

/// Work that is queued before the download reads what the download will overwrite: only the host may not look.
TEST_P(OneBuffer, goes_up_and_comes_back) {
  constexpr std::size_t count = 16;
  std::vector<int> pageable(count);
  int* const pinned = GetParam() ? pinned_array<int>(count) : nullptr;
  int* const host = GetParam() ? pinned : pageable.data();
  for (std::size_t i = 0; i < count; ++i) host[i] = static_cast<int>(i);
  int* const device = device_array<int>(count);
  hipStream_t stream = make_stream();
  static int seen = -1;
  must(hipMemcpyAsync(device, host, count * sizeof(int), hipMemcpyHostToDevice, stream));
  hipLaunchKernelGGL(double_in_place, dim3(1), dim3(count), 0, stream, device);
  must(hipLaunchHostFunc(
      stream, [](void* data) { seen = static_cast<int*>(data)[3]; }, host));
  must(hipMemcpyAsync(host, device, count * sizeof(int), hipMemcpyDeviceToHost, stream));
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(host[3], 6);
  must(hipStreamDestroy(stream));
  must(hipFree(device));
  must(hipHostFree(pinned));
}

INSTANTIATE_TEST_SUITE_P(Memory, OneBuffer, testing::Bool(),
                         [](const auto& info) { return info.param ? "pinned" : "pageable"; });

// ---- host functions that throw, handles that are stale --------------------------------------------------------------

TEST_F(Runtime, a_host_function_that_throws_leaves_a_runtime_that_works) {
  hipStream_t stream = make_stream();
  must(hipLaunchHostFunc(
      stream, [](void*) { throw 7; }, nullptr));
  EXPECT_THROW(static_cast<void>(hipStreamSynchronize(stream)), int);
  must(hipStreamSynchronize(stream));
  must(hipStreamDestroy(stream));
}

TEST_F(Runtime, a_destroyed_handle_is_not_the_next_one_made) {
  hipStream_t first = make_stream();
  must(hipStreamDestroy(first));
  hipStream_t second = make_stream();
  EXPECT_NE(first, second);
  EXPECT_EQ(hipStreamDestroy(first), hipErrorInvalidHandle);
  must(hipStreamDestroy(second));
}

}  // namespace
