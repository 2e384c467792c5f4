// What AddressSanitizer and UBSan see of kernels and of the host: the lines at fault, not the runtime's.
#include "runtime_test.hpp"

#include <cstdlib>
#include <memory>

#if defined(HIPSIM_TEST_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace {

using namespace hipsim_test;

bool is_poisoned(const void* at) {
#if defined(HIPSIM_TEST_ADDRESS_SANITIZER)
  return __asan_address_is_poisoned(at) != 0;
#else
  static_cast<void>(at);
  return false;
#endif
}

class Sanitizer : public Runtime {
 protected:
  void SetUp() override {
    Runtime::SetUp();
    if (!has_address_sanitizer) GTEST_SKIP() << "built without AddressSanitizer";
  }
  /// Runs what is queued, then ends the process in a way no pattern matches.
  [[noreturn]] static void run_and_abort() {
    static_cast<void>(hipDeviceSynchronize());
    std::abort();
  }
};

class Undefined : public Runtime {};

__global__ void write_at(char* bytes, int index) { bytes[index] = 1; }
__global__ void write_word_at(int* words, int index) { words[index] = 1; }
__global__ void write_shared_at(int* out, int index) {
  __shared__ int values[4];
  values[index] = 5;
  *out = values[0];
}
__global__ void write_dynamic_at(int* out, int index) {
  HIP_DYNAMIC_SHARED(int, values);
  values[index] = 5;
  *out = values[0];
}
__global__ void write_local_at(int* out, int index) {
  int values[4] = {};
  int* const where = values;
  where[index] = 5;
  __syncthreads();
  *out = values[0];
}
__global__ void use_of_another_frame(int** slot, int* out) {
  int mine = static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) *slot = &mine;
  __syncthreads();
  if (threadIdx.x == 1) *out = **slot + mine;
  __syncthreads();
}

// ---- redzones -------------------------------------------------------------------------------------------------------

TEST_F(Sanitizer, a_kernel_may_touch_the_first_and_the_last_byte) {
  for (const int size : {1, 3, 7, 8, 9, 255, 256, 257}) {
    char* bytes = device_array<char>(static_cast<std::size_t>(size));
    hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, 0);
    hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, size - 1);
    must(hipDeviceSynchronize());
    must(hipFree(bytes));
  }
}

TEST_F(Sanitizer, a_kernel_that_writes_one_past_the_end_is_stopped_at_its_own_line) {
  for (const int size : {1, 3, 8, 13, 256}) {
    char* bytes = device_array<char>(static_cast<std::size_t>(size));
    hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, size);
    EXPECT_DEATH(run_and_abort(), "AddressSanitizer: heap-buffer-overflow(.|\n)*write_at") << "size " << size;
    start_over();
  }
}

TEST_F(Sanitizer, a_kernel_that_writes_before_the_beginning_is_stopped) {
  char* bytes = device_array<char>(16);
  hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, -1);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer(.|\n)*write_at");
}

TEST_F(Sanitizer, pinned_memory_has_redzones_for_kernels_and_for_the_host) {
  char* bytes = pinned_array<char>(5);
  bytes[4] = 1;
  EXPECT_TRUE(is_poisoned(bytes + 5));
  hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, 5);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: heap-buffer-overflow(.|\n)*write_at");
}

TEST_F(Sanitizer, a_kernel_that_writes_past_its_shared_array_is_stopped) {
  int* out = device_array<int>(1);
  hipLaunchKernelGGL(write_shared_at, dim3(1), dim3(1), 0, nullptr, out, 3);
  must(hipDeviceSynchronize());
#if defined(__clang__)
  hipLaunchKernelGGL(write_shared_at, dim3(1), dim3(1), 0, nullptr, out, 4);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: global-buffer-overflow(.|\n)*write_shared_at|out of bounds");
#endif
}

TEST_F(Sanitizer, a_kernel_that_writes_past_its_dynamic_shared_memory_is_stopped) {
  int* out = device_array<int>(1);
  hipLaunchKernelGGL(write_dynamic_at, dim3(2), dim3(1), 12, nullptr, out, 2);
  must(hipDeviceSynchronize());
  hipLaunchKernelGGL(write_dynamic_at, dim3(2), dim3(1), 12, nullptr, out, 3);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: heap-buffer-overflow(.|\n)*write_dynamic_at");
}

TEST_F(Sanitizer, dynamic_shared_memory_of_an_earlier_launch_is_no_excuse) {
  int* out = device_array<int>(1);
  hipLaunchKernelGGL(write_dynamic_at, dim3(1), dim3(1), 400, nullptr, out, 99);
  must(hipDeviceSynchronize());
  hipLaunchKernelGGL(write_dynamic_at, dim3(1), dim3(1), 4, nullptr, out, 1);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer(.|\n)*write_dynamic_at");
  hipLaunchKernelGGL(write_dynamic_at, dim3(1), dim3(1), 0, nullptr, out, 0);
  EXPECT_DEATH(run_and_abort(), "Sanitizer|runtime error");
}

// ---- stacks of fibers -----------------------------------------------------------------------------------------------

TEST_F(Sanitizer, a_thread_that_writes_past_its_own_array_is_stopped_between_barriers) {
  int* out = device_array<int>(1);
  hipLaunchKernelGGL(write_local_at, dim3(1), dim3(8), 0, nullptr, out, 3);
  must(hipDeviceSynchronize());
  hipLaunchKernelGGL(write_local_at, dim3(1), dim3(8), 0, nullptr, out, 4);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: stack-buffer-overflow(.|\n)*write_local_at|out of bounds");
}

/// A stack of a fiber is memory like any other: nothing of it stays poisoned for the thread that has it next.
TEST_F(Sanitizer, stacks_used_again_are_clean) {
  int* out = device_array<int>(1);
  int** slot = device_array<int*>(1);
  for (int i = 0; i < 20; ++i) {
    hipLaunchKernelGGL(write_local_at, dim3(3), dim3(64), 0, nullptr, out, 1);
    hipLaunchKernelGGL(use_of_another_frame, dim3(2), dim3(64), 0, nullptr, slot, out);
    must(hipDeviceSynchronize());
  }
  EXPECT_EQ(host_copy(out, 1)[0], 1);
}

__device__ int go_deeper(volatile int* depth) {
  volatile char frame[1024];
  frame[0] = 1;
  *depth = *depth + 1;
  return *depth > 0 ? go_deeper(depth) + frame[0] : 0;
}
__global__ void goes_too_deep(volatile int* depth) {
  __syncthreads();
  go_deeper(depth);
}

TEST_F(Sanitizer, a_thread_that_runs_out_of_stack_is_stopped_and_touches_no_other) {
  int* depth = device_copy(std::vector<int>{0});
  hipLaunchKernelGGL(goes_too_deep, dim3(1), dim3(2), 0, nullptr, depth);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: stack-overflow(.|\n)*go_deeper");
}

// ---- after free -----------------------------------------------------------------------------------------------------

TEST_F(Sanitizer, a_kernel_that_uses_freed_memory_is_stopped) {
  char* bytes = device_array<char>(16);
  must(hipFree(bytes));
  hipLaunchKernelGGL(write_at, dim3(1), dim3(1), 0, nullptr, bytes, 3);
  EXPECT_DEATH(run_and_abort(), "AddressSanitizer: heap-use-after-free(.|\n)*write_at");
}

TEST_F(Sanitizer, a_host_that_uses_freed_pinned_memory_is_stopped) {
  char* bytes = pinned_array<char>(16);
  must(hipHostFree(bytes));
  EXPECT_TRUE(is_poisoned(bytes));
}

TEST_F(Sanitizer, a_host_range_freed_before_its_copy_ran_is_reported) {
  follow_rules(hipsim::Rules::portable);
  auto source = std::make_unique<char[]>(64);
  char* device = device_array<char>(64);
  const int line = __LINE__ + 1;
  must(hipMemcpyAsync(device, source.get(), 64, hipMemcpyHostToDevice));
  source.reset();
  static_cast<void>(hipDeviceSynchronize());
  const std::string text = take_report(hipsim::Report::freed_host_memory);
  EXPECT_TRUE(contains(text, "sanitizer_test.cpp:" + std::to_string(line))) << text;
}

TEST_F(Sanitizer, a_host_target_freed_before_its_copy_ran_is_reported) {
  follow_rules(hipsim::Rules::portable);
  auto target = std::make_unique<char[]>(64);
  char* device = device_array<char>(64);
  must(hipMemcpyAsync(target.get(), device, 64, hipMemcpyDeviceToHost));
  target.reset();
  static_cast<void>(hipDeviceSynchronize());
  EXPECT_FALSE(take_report(hipsim::Report::freed_host_memory).empty());
}

TEST_F(Sanitizer, a_host_range_freed_after_its_copy_is_no_mistake) {
  follow_rules(hipsim::Rules::portable);
  auto source = std::make_unique<char[]>(64);
  auto target = std::make_unique<char[]>(64);
  char* device = device_array<char>(64);
  must(hipMemcpyAsync(device, source.get(), 64, hipMemcpyHostToDevice));
  must(hipMemcpyAsync(target.get(), device, 64, hipMemcpyDeviceToHost));
  must(hipDeviceSynchronize());
  source.reset();
  target.reset();
}

TEST_F(Sanitizer, a_blocking_copy_past_the_end_of_host_memory_is_stopped) {
  const auto source = std::make_unique<char[]>(64);
  char* device = device_array<char>(65);
  EXPECT_DEATH(
      {
        hipsim::set_report_handler(nullptr);
        static_cast<void>(hipMemcpy(device, source.get(), 65, hipMemcpyHostToDevice));
        std::exit(0);
      },
      "");
}

// ---- the host and the device's memory -------------------------------------------------------------------------------

int ran_on_host = 0;

TEST_F(Sanitizer, device_memory_is_poisoned_for_the_host_outside_calls) {
  int* device = device_array<int>(4);
  EXPECT_TRUE(is_poisoned(device));
  EXPECT_TRUE(is_poisoned(device + 3));
  must(hipMemset(device, 0, 16));
  hipLaunchKernelGGL(write_word_at, dim3(1), dim3(1), 0, nullptr, device, 1);
  must(hipDeviceSynchronize());
  EXPECT_TRUE(is_poisoned(device + 1));
  EXPECT_EQ(host_copy(device, 4), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_TRUE(is_poisoned(device));
}

TEST_F(Sanitizer, a_host_that_reads_device_memory_is_stopped) {
  const volatile int* device = device_array<int>(4);
  EXPECT_DEATH(std::exit(device[1]), "AddressSanitizer: use-after-poison");
}

TEST_F(Sanitizer, device_memory_is_poisoned_within_host_functions) {
  static int* device = nullptr;
  device = device_array<int>(4);
  ran_on_host = -1;
  must(hipLaunchHostFunc(
      nullptr, [](void* at) { ran_on_host = is_poisoned(at) ? 1 : 0; }, device));
  hipLaunchKernelGGL(write_word_at, dim3(1), dim3(1), 0, nullptr, device, 1);
  must(hipDeviceSynchronize());
  EXPECT_EQ(ran_on_host, 1);
}

TEST_F(Sanitizer, pinned_memory_is_open_to_the_host) {
  int* pinned = pinned_array<int>(4);
  EXPECT_FALSE(is_poisoned(pinned));
  EXPECT_FALSE(is_poisoned(pinned + 3));
}

TEST_F(Sanitizer, a_target_on_the_host_is_poisoned_until_its_copy_ran) {
  follow_rules(hipsim::Rules::portable);
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{1, 2, 3, 4});
  int* pinned = pinned_array<int>(5);
  std::vector<int> pageable(5);
  must(hipMemcpyAsync(pinned, device, 16, hipMemcpyDeviceToHost, stream));
  must(hipMemcpyAsync(pageable.data(), device, 16, hipMemcpyDeviceToHost, stream));
  EXPECT_TRUE(is_poisoned(pinned));
  EXPECT_TRUE(is_poisoned(pinned + 3));
  EXPECT_FALSE(is_poisoned(pinned + 4));
  EXPECT_TRUE(is_poisoned(pageable.data()));
  must(hipStreamSynchronize(stream));
  EXPECT_FALSE(is_poisoned(pinned));
  EXPECT_FALSE(is_poisoned(pageable.data()));
  EXPECT_EQ(pinned[3], 4);
  EXPECT_EQ(pageable[3], 4);
}

TEST_F(Sanitizer, a_result_read_before_synchronising_is_stopped) {
  int* device = device_copy(std::vector<int>{42});
  volatile int* result = pinned_array<int>(1);
  must(hipMemcpyAsync(const_cast<int*>(result), device, 4, hipMemcpyDeviceToHost));
  EXPECT_DEATH(std::exit(*result), "AddressSanitizer: use-after-poison");
  must(hipDeviceSynchronize());
  EXPECT_EQ(*result, 42);
}

TEST_F(Sanitizer, a_reset_leaves_nothing_of_the_host_poisoned) {
  follow_rules(hipsim::Rules::portable);
  int* device = device_copy(std::vector<int>{42});
  std::vector<int> pageable(1);
  must(hipMemcpyAsync(pageable.data(), device, 4, hipMemcpyDeviceToHost));
  start_over();
  EXPECT_FALSE(is_poisoned(pageable.data()));
}

TEST_F(Sanitizer, one_target_of_two_copies_is_open_once_both_have_run) {
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{1, 2});
  int* pinned = pinned_array<int>(2);
  must(hipMemcpyAsync(pinned, device, 8, hipMemcpyDeviceToHost, stream));
  must(hipMemcpyAsync(pinned, device + 1, 4, hipMemcpyDeviceToHost, stream));
  must(hipStreamSynchronize(stream));
  EXPECT_FALSE(is_poisoned(pinned));
  EXPECT_FALSE(is_poisoned(pinned + 1));
  EXPECT_EQ(pinned[0], 2);
}

// ---- UBSan ----------------------------------------------------------------------------------------------------------

TEST_F(Undefined, a_kernel_with_a_misaligned_pointer_is_reported_at_its_line) {
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
  char* bytes = device_array<char>(16);
  hipLaunchKernelGGL(write_word_at, dim3(1), dim3(1), 0, nullptr, reinterpret_cast<int*>(bytes + 1), 0);
  EXPECT_DEATH(
      {
        static_cast<void>(hipDeviceSynchronize());
        std::abort();
      },
      "sanitizer_test.cpp:.*misaligned address");
  return;
#endif
#endif
  GTEST_SKIP() << "built without UBSan";
}

TEST_F(Sanitizer, a_target_stays_hidden_until_the_last_copy_to_it_has_run) {
  follow_rules(hipsim::Rules::portable);
  int* const device = device_copy(std::vector<int>{1, 2, 3, 4});
  std::vector<int> host(4);
  hipStream_t first = make_stream(hipStreamNonBlocking);
  hipStream_t second = make_stream(hipStreamNonBlocking);
  must(hipMemcpyAsync(host.data(), device, 16, hipMemcpyDeviceToHost, first));
  must(hipMemcpyAsync(host.data(), device, 16, hipMemcpyDeviceToHost, second));
  must(hipStreamSynchronize(first));
  EXPECT_TRUE(is_poisoned(host.data()));
  must(hipStreamSynchronize(second));
  EXPECT_FALSE(is_poisoned(host.data()));
  must(hipStreamDestroy(first));
  must(hipStreamDestroy(second));
  must(hipFree(device));
}

/// A hidden target that begins in the middle of a granule was taken for one that is gone.
TEST_F(Sanitizer, a_target_may_begin_anywhere) {
  follow_rules(hipsim::Rules::portable);
  char* const device = device_copy(std::vector<char>(40, 'x'));
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t size = 1; size < 20; ++size) {
      std::string target(begin + size, '.');
      must(hipMemcpyAsync(target.data() + begin, device, size, hipMemcpyDeviceToHost));
      must(hipDeviceSynchronize());
      EXPECT_EQ(target, std::string(begin, '.') + std::string(size, 'x'));
    }
}

TEST_F(Sanitizer, a_host_range_that_is_not_all_there_is_refused) {
  int* const device = device_array<int>(16);
  const auto source = std::make_unique<char[]>(10);
  EXPECT_EQ(hipMemcpy(device, source.get(), 20, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_TRUE(contains(hipsim::last_message(), "the source, 20 bytes, is not all there")) << hipsim::last_message();
  must(hipFree(device));
}

}  // namespace
