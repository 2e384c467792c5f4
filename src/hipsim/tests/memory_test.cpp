// Memory: what is allocated, copied and freed, and what is refused.
#include "runtime_test.hpp"

#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>

namespace {

using namespace hipsim_test;

class Memory : public Runtime {};

__global__ void add_one(int* values) { values[threadIdx.x] += 1; }
__global__ void read_first(const int* values, int* out) { *out = values[0]; }

std::vector<int> ascending(std::size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

// ---- what keeps the rules -------------------------------------------------------------------------------------------

TEST_F(Memory, copies_go_in_every_direction) {
  const std::vector<int> values = ascending(100);
  constexpr std::size_t bytes = 100 * sizeof(int);
  int* first = device_array<int>(100);
  int* second = device_array<int>(100);
  std::vector<int> between(100);
  std::vector<int> back(100);
  must(hipMemcpy(between.data(), values.data(), bytes, hipMemcpyHostToHost));
  must(hipMemcpy(first, between.data(), bytes, hipMemcpyHostToDevice));
  must(hipMemcpy(second, first, bytes, hipMemcpyDeviceToDevice));
  must(hipMemcpy(back.data(), second, bytes, hipMemcpyDeviceToHost));
  EXPECT_EQ(back, values);
}

TEST_F(Memory, the_default_direction_is_read_from_the_pointers) {
  const std::vector<int> values = ascending(10);
  int* first = device_array<int>(10);
  int* second = device_array<int>(10);
  std::vector<int> back(10);
  must(hipMemcpy(first, values.data(), 40, hipMemcpyDefault));
  must(hipMemcpy(second, first, 40, hipMemcpyDefault));
  must(hipMemcpy(back.data(), second, 40, hipMemcpyDefault));
  EXPECT_EQ(back, values);
  EXPECT_EQ(hipsim::counters().host_to_device_bytes, 40);
  EXPECT_EQ(hipsim::counters().device_to_device_bytes, 40);
  EXPECT_EQ(hipsim::counters().device_to_host_bytes, 40);
}

TEST_F(Memory, asynchronous_copies_go_in_every_direction) {
  hipStream_t stream = make_stream();
  int* from = pinned_array<int>(10);
  int* to = pinned_array<int>(10);
  int* first = device_array<int>(10);
  int* second = device_array<int>(10);
  std::iota(from, from + 10, 1);
  must(hipMemcpyAsync(first, from, 40, hipMemcpyHostToDevice, stream));
  must(hipMemcpyAsync(second, first, 40, hipMemcpyDeviceToDevice, stream));
  must(hipMemcpyAsync(to, second, 40, hipMemcpyDeviceToHost, stream));
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(std::vector<int>(to, to + 10), ascending(10));
}

TEST_F(Memory, sets_fill_bytes_and_no_others) {
  unsigned char* bytes = device_array<unsigned char>(8);
  must(hipMemset(bytes, 0x11, 8));
  must(hipMemset(bytes + 2, 0x1ff, 3));
  EXPECT_EQ(host_copy(bytes, 8), (std::vector<unsigned char>{0x11, 0x11, 0xff, 0xff, 0xff, 0x11, 0x11, 0x11}));
  must(hipMemsetAsync(bytes, 7, 1));
  EXPECT_EQ(host_copy(bytes, 2), (std::vector<unsigned char>{7, 0x11}));
}

TEST_F(Memory, copies_inside_an_allocation_may_start_anywhere) {
  char* device = device_copy(std::vector<char>{'a', 'b', 'c', 'd', 'e'});
  must(hipMemcpy(device + 3, device + 1, 2, hipMemcpyDeviceToDevice));
  EXPECT_EQ(host_copy(device, 5), (std::vector<char>{'a', 'b', 'c', 'b', 'c'}));
}

TEST_F(Memory, kernels_touch_pinned_memory) {
  int* pinned = pinned_array<int>(4);
  std::iota(pinned, pinned + 4, 1);
  hipLaunchKernelGGL(add_one, dim3(1), dim3(4), 0, nullptr, pinned);
  must(hipDeviceSynchronize());
  EXPECT_EQ(std::vector<int>(pinned, pinned + 4), (std::vector<int>{2, 3, 4, 5}));
  must(hipHostFree(pinned));
}

TEST_F(Memory, allocations_are_aligned_for_every_type) {
  for (const std::size_t size : {1u, 3u, 17u, 4096u, 4097u}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_array<char>(size)) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned_array<char>(size)) % alignof(std::max_align_t), 0u);
  }
}

TEST_F(Memory, a_size_of_zero_copies_and_sets_nothing) {
  int host = 3;
  int* one = device_copy(std::vector<int>{7});
  hipsim::reset_counters();
  must(hipMemcpy(one, &host, 0, hipMemcpyHostToDevice));
  must(hipMemcpyAsync(one, nullptr, 0, hipMemcpyHostToDevice));
  must(hipMemset(one, 1, 0));
  must(hipMemsetAsync(one, 1, 0));
  EXPECT_EQ(hipsim::counters().host_to_device_bytes, 0);
  EXPECT_EQ(host_copy(one, 1)[0], 7);
}

TEST_F(Memory, freeing_null_is_no_mistake) {
  must(hipFree(nullptr));
  must(hipHostFree(nullptr));
}

TEST_F(Memory, what_lives_is_listed_with_the_place_that_made_it) {
  int* device = device_array<int>(3);
  const int line = __LINE__ + 2;
  void* pinned = nullptr;
  must(hipHostMalloc(&pinned, 5));
  const std::vector<hipsim::Allocation> live = hipsim::live_allocations();
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].pointer, device);
  EXPECT_EQ(live[0].size, 12u);
  EXPECT_FALSE(live[0].is_pinned);
  EXPECT_EQ(live[1].pointer, pinned);
  EXPECT_TRUE(live[1].is_pinned);
  EXPECT_EQ(live[1].place.line, line);
  EXPECT_TRUE(contains(live[1].place.file, "memory_test.cpp"));
  must(hipFree(device));
  must(hipHostFree(pinned));
  EXPECT_TRUE(hipsim::live_allocations().empty());
}

// ---- pointers and sizes that are wrong ------------------------------------------------------------------------------

TEST_F(Memory, null_is_refused_where_a_pointer_is_needed) {
  int host = 0;
  int* device = device_array<int>(1);
  EXPECT_EQ(hipMalloc(static_cast<void**>(nullptr), 4), hipErrorInvalidValue);
  EXPECT_EQ(hipHostMalloc(static_cast<void**>(nullptr), 4), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(device, nullptr, 4, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(nullptr, &host, 4, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpyAsync(nullptr, device, 4, hipMemcpyDeviceToHost), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset(nullptr, 0, 4), hipErrorInvalidValue);
  EXPECT_EQ(hipMemsetAsync(nullptr, 0, 4), hipErrorInvalidValue);
  EXPECT_FALSE(hipsim::last_message().empty());
}

/// AMD's rules answer success and null: rules_test.
TEST_F(Memory, a_size_of_zero_is_refused_by_name) {
  follow_rules(hipsim::Rules::portable);
  int untouched = 0;
  int* device = &untouched;
  EXPECT_EQ(hipMalloc(&device, 0), hipErrorInvalidValue);
  EXPECT_EQ(device, nullptr);
  EXPECT_TRUE(contains(hipsim::last_message(), "hipMalloc: 0 bytes")) << hipsim::last_message();
  int* pinned = &untouched;
  EXPECT_EQ(hipHostMalloc(&pinned, 0), hipErrorInvalidValue);
  EXPECT_EQ(pinned, nullptr);
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
}

TEST_F(Memory, freed_twice_is_refused_by_name) {
  int* device = device_array<int>(4);
  must(hipFree(device));
  EXPECT_EQ(hipFree(device), hipErrorInvalidValue);
  EXPECT_TRUE(contains(hipsim::last_message(), "free")) << hipsim::last_message();
}

TEST_F(Memory, pinned_memory_freed_twice_is_refused) {
  int* pinned = pinned_array<int>(4);
  must(hipHostFree(pinned));
  EXPECT_EQ(hipHostFree(pinned), hipErrorInvalidValue);
}

TEST_F(Memory, freeing_the_middle_of_an_allocation_is_refused) {
  int* device = device_array<int>(4);
  EXPECT_EQ(hipFree(device + 1), hipErrorInvalidValue);
  EXPECT_EQ(hipFree(reinterpret_cast<char*>(device) + 1), hipErrorInvalidValue);
  EXPECT_EQ(hipsim::counters().live_allocations, 1);
  must(hipFree(device));
}

TEST_F(Memory, freeing_what_the_other_allocator_made_is_refused) {
  int* device = device_array<int>(4);
  int* pinned = pinned_array<int>(4);
  EXPECT_EQ(hipFree(pinned), hipErrorInvalidValue);
  EXPECT_EQ(hipHostFree(device), hipErrorInvalidValue);
  EXPECT_EQ(hipsim::counters().live_allocations, 2);
}

TEST_F(Memory, freeing_memory_of_the_host_is_refused) {
  const auto host = std::make_unique<int>(1);
  EXPECT_EQ(hipFree(host.get()), hipErrorInvalidValue);
  EXPECT_EQ(hipHostFree(host.get()), hipErrorInvalidValue);
}

TEST_F(Memory, copies_past_the_end_are_refused_with_numbers) {
  std::vector<int> host(11);
  int* device = device_array<int>(10);
  EXPECT_EQ(hipMemcpy(device, host.data(), 44, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_TRUE(contains(hipsim::last_message(), "44")) << hipsim::last_message();
  EXPECT_TRUE(contains(hipsim::last_message(), "40")) << hipsim::last_message();
  EXPECT_EQ(hipMemcpy(host.data(), device + 1, 40, hipMemcpyDeviceToHost), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpyAsync(device + 9, host.data(), 8, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset(device, 0, 41), hipErrorInvalidValue);
  EXPECT_EQ(hipMemsetAsync(device + 10, 0, 1), hipErrorInvalidValue);
}

TEST_F(Memory, copies_past_the_end_of_pinned_memory_are_refused) {
  int* pinned = pinned_array<int>(4);
  int* device = device_array<int>(8);
  EXPECT_EQ(hipMemcpy(device, pinned, 20, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpyAsync(pinned + 1, device, 16, hipMemcpyDeviceToHost), hipErrorInvalidValue);
}

TEST_F(Memory, copies_with_freed_memory_are_refused) {
  int host = 0;
  int* device = device_array<int>(1);
  must(hipFree(device));
  EXPECT_NE(hipMemcpy(&host, device, 4, hipMemcpyDeviceToHost), hipSuccess);
  EXPECT_NE(hipMemcpy(device, &host, 4, hipMemcpyHostToDevice), hipSuccess);
  EXPECT_NE(hipMemset(device, 0, 4), hipSuccess);
}

TEST_F(Memory, the_wrong_direction_is_refused_by_name) {
  int host[2] = {};
  int* device = device_array<int>(2);
  EXPECT_EQ(hipMemcpy(device, host, 4, hipMemcpyDeviceToHost), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpy(host, device, 4, hipMemcpyHostToDevice), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpy(device, host, 4, hipMemcpyDeviceToDevice), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpy(host, device, 4, hipMemcpyHostToHost), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpyAsync(device, host, 4, hipMemcpyDeviceToHost), hipErrorInvalidMemcpyDirection);
  EXPECT_FALSE(hipsim::last_message().empty());
}

TEST_F(Memory, a_direction_that_is_none_is_refused) {
  int host = 0;
  int* device = device_array<int>(1);
  // A value within the enumeration's range, so that no sanitizer objects to the conversion.
  EXPECT_EQ(hipMemcpy(device, &host, 4, static_cast<hipMemcpyKind>(7)), hipErrorInvalidMemcpyDirection);
}

TEST_F(Memory, a_device_set_on_host_memory_is_refused) {
  int host = 3;
  EXPECT_EQ(hipMemset(&host, 0, 4), hipErrorInvalidValue);
  EXPECT_EQ(host, 3);
}

TEST_F(Memory, managed_memory_is_refused_by_name) {
  int* managed = nullptr;
  EXPECT_EQ(hipMallocManaged(&managed, 4), hipErrorNotSupported);
  EXPECT_TRUE(contains(hipsim::last_message(), "hipMallocManaged")) << hipsim::last_message();
  EXPECT_EQ(managed, nullptr);
}

TEST_F(Memory, allocations_that_the_device_cannot_hold_are_refused) {
  hipsim::Config config;
  config.device_memory_bytes = 1000;
  ASSERT_TRUE(hipsim::configure(config));
  char* first = device_array<char>(600);
  char* second = nullptr;
  EXPECT_EQ(hipMalloc(&second, 401), hipErrorOutOfMemory);
  EXPECT_EQ(second, nullptr);
  EXPECT_TRUE(contains(hipsim::last_message(), "401")) << hipsim::last_message();
  std::size_t free = 0;
  std::size_t total = 0;
  must(hipMemGetInfo(&free, &total));
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  must(hipMalloc(&second, 400));
  must(hipFree(first));
  first = device_array<char>(600);
  must(hipMemGetInfo(&free, &total));
  EXPECT_EQ(free, 0u);
}

TEST_F(Memory, a_size_that_overflows_is_out_of_memory) {
  char* device = nullptr;
  EXPECT_EQ(hipMalloc(&device, ~std::size_t{0}), hipErrorOutOfMemory);
  EXPECT_EQ(hipMalloc(&device, ~std::size_t{0} - 200), hipErrorOutOfMemory);
  must(hipMalloc(&device, 1));
}

TEST_F(Memory, a_refused_call_changes_nothing) {
  int* device = device_copy(std::vector<int>{1, 2});
  const int host[3] = {7, 8, 9};
  EXPECT_NE(hipMemcpy(device, host, 12, hipMemcpyHostToDevice), hipSuccess);
  EXPECT_NE(hipMemset(device, 0, 9), hipSuccess);
  EXPECT_EQ(host_copy(device, 2), (std::vector<int>{1, 2}));
}

// ---- junk -----------------------------------------------------------------------------------------------------------

std::vector<unsigned char> fresh_bytes(std::uint64_t seed) {
  configure(seed);
  unsigned char* device = device_array<unsigned char>(64);
  std::vector<unsigned char> bytes = host_copy(device, 64);
  must(hipFree(device));
  return bytes;
}

TEST_F(Memory, fresh_memory_holds_junk_that_changes_with_the_seed) {
  const std::vector<unsigned char> first = fresh_bytes(1);
  start_over();
  const std::vector<unsigned char> second = fresh_bytes(2);
  start_over();
  EXPECT_EQ(fresh_bytes(1), first);
  EXPECT_NE(first, second);
  EXPECT_NE(first, std::vector<unsigned char>(64, 0));
  EXPECT_NE(second, std::vector<unsigned char>(64, 0));
}

TEST_F(Memory, fresh_pinned_memory_holds_junk) {
  std::array<std::vector<unsigned char>, 2> seen;
  for (const std::uint64_t seed : {1u, 2u}) {
    start_over();
    configure(seed);
    unsigned char* pinned = pinned_array<unsigned char>(64);
    seen[seed - 1].assign(pinned, pinned + 64);
  }
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[0], std::vector<unsigned char>(64, 0));
}

/// A program that forgets to initialise its counter is right when the memory happens to be zero: junk shows it.
TEST_F(Memory, a_program_that_relies_on_fresh_zeros_is_wrong_under_every_seed) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    configure(seed);
    int* values = device_array<int>(1);
    int* out = device_array<int>(1);
    hipLaunchKernelGGL(read_first, dim3(1), dim3(1), 0, nullptr, values, out);
    EXPECT_NE(host_copy(out, 1)[0], 0) << "seed " << seed;
  }
}

TEST_F(Memory, memory_that_is_allocated_again_holds_nothing_of_what_was_there) {
  int* first = device_copy(std::vector<int>(256, 123456789));
  must(hipFree(first));
  int* second = device_array<int>(256);
  for (const int value : host_copy(second, 256)) EXPECT_NE(value, 123456789);
}

// ---- the source and the destination of a queued copy ----------------------------------------------------------------

TEST_F(Memory, a_pageable_source_rewritten_before_its_copy_ran_is_reported) {
  follow_rules(hipsim::Rules::portable);
  hipStream_t stream = make_stream();
  int* device = device_array<int>(4);
  std::vector<int> source(4, 1);
  const int line = __LINE__ + 1;
  must(hipMemcpyAsync(device, source.data(), 16, hipMemcpyHostToDevice, stream));
  source[2] = 5;
  static_cast<void>(hipStreamSynchronize(stream));
  const std::string text = take_report(hipsim::Report::source_changed);
  EXPECT_TRUE(contains(text, "memory_test.cpp:" + std::to_string(line))) << text;
}

TEST_F(Memory, a_pageable_source_may_be_rewritten_after_synchronising) {
  hipStream_t stream = make_stream();
  int* device = device_array<int>(4);
  std::vector<int> source(4, 1);
  must(hipMemcpyAsync(device, source.data(), 16, hipMemcpyHostToDevice, stream));
  must(hipStreamSynchronize(stream));
  source.assign(4, 5);
  EXPECT_EQ(host_copy(device, 4), std::vector<int>(4, 1));
}

TEST_F(Memory, a_pageable_source_may_be_rewritten_after_a_blocking_copy) {
  int* device = device_array<int>(4);
  std::vector<int> source(4, 1);
  must(hipMemcpy(device, source.data(), 16, hipMemcpyHostToDevice));
  source.assign(4, 5);
  EXPECT_EQ(host_copy(device, 4), std::vector<int>(4, 1));
}

/// The copy reads what is there when it runs: the later value arrives, which is the mistake shown.
TEST_F(Memory, a_pinned_source_rewritten_early_shows_in_lazy_mode_alone) {
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  for (const hipsim::Mode mode : {hipsim::Mode::lazy, hipsim::Mode::eager}) {
    configure(0, mode);
    int* device = device_array<int>(1);
    int* source = pinned_array<int>(1);
    *source = 1;
    must(hipMemcpyAsync(device, source, 4, hipMemcpyHostToDevice));
    *source = 2;
    must(hipDeviceSynchronize());
    EXPECT_EQ(host_copy(device, 1)[0], mode == hipsim::Mode::lazy ? 2 : 1);
  }
}

TEST_F(Memory, a_result_is_not_there_before_synchronising) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer would stop the read: sanitizer_test";
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{42});
  int* result = pinned_array<int>(1);
  *result = 0;
  must(hipMemcpyAsync(result, device, 4, hipMemcpyDeviceToHost, stream));
  EXPECT_EQ(*result, 0);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(*result, 42);
}

TEST_F(Memory, a_pageable_result_is_not_there_before_synchronising) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer would stop the read: sanitizer_test";
  if (has_thread_sanitizer) GTEST_SKIP() << "a race, which race_test looks at";
  follow_rules(hipsim::Rules::portable);
  hipStream_t stream = make_stream();
  int* device = device_copy(std::vector<int>{42});
  std::vector<int> result{0};
  must(hipMemcpyAsync(result.data(), device, 4, hipMemcpyDeviceToHost, stream));
  EXPECT_EQ(result[0], 0);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(result[0], 42);
}

TEST_F(Memory, memory_freed_while_a_kernel_that_uses_it_is_queued_is_reported) {
  follow_rules(hipsim::Rules::portable);
  hipStream_t stream = make_stream();
  int* device = device_array<int>(4);
  hipLaunchKernelGGL(add_one, dim3(1), dim3(4), 0, stream, device);
  const int line = __LINE__ + 1;
  static_cast<void>(hipFree(device));
  const std::string text = take_report(hipsim::Report::free_while_queued);
  EXPECT_TRUE(contains(text, "add_one")) << text;
  for (const int place : {line - 3, line - 2, line})
    EXPECT_TRUE(contains(text, "memory_test.cpp:" + std::to_string(place))) << text;
}

TEST_F(Memory, memory_freed_while_a_copy_is_queued_is_reported) {
  follow_rules(hipsim::Rules::portable);
  hipStream_t stream = make_stream();
  int* device = device_array<int>(4);
  int* pinned = pinned_array<int>(4);
  must(hipMemcpyAsync(device, pinned, 16, hipMemcpyHostToDevice, stream));
  static_cast<void>(hipFree(device));
  EXPECT_FALSE(take_report(hipsim::Report::free_while_queued).empty());
  start_over();
  follow_rules(hipsim::Rules::portable);
  stream = make_stream();
  device = device_array<int>(4);
  pinned = pinned_array<int>(4);
  must(hipMemcpyAsync(device, pinned, 16, hipMemcpyHostToDevice, stream));
  static_cast<void>(hipHostFree(pinned));
  EXPECT_FALSE(take_report(hipsim::Report::free_while_queued).empty());
}

TEST_F(Memory, memory_freed_after_the_work_that_uses_it_is_no_mistake) {
  hipStream_t stream = make_stream();
  int* device = device_array<int>(4);
  int* other = device_array<int>(4);
  hipLaunchKernelGGL(add_one, dim3(1), dim3(4), 0, stream, device);
  must(hipFree(other));
  must(hipStreamSynchronize(stream));
  must(hipFree(device));
}

// ---- leaks ----------------------------------------------------------------------------------------------------------

TEST_F(Memory, a_leak_is_reported_at_device_reset_with_its_place) {
  int* device = nullptr;
  const int line = __LINE__ + 1;
  must(hipMalloc(&device, 12));
  static_cast<void>(hipDeviceReset());
  const std::string text = take_report(hipsim::Report::leak);
  EXPECT_TRUE(contains(text, "memory_test.cpp:" + std::to_string(line))) << text;
  EXPECT_TRUE(contains(text, "12")) << text;
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
}

TEST_F(Memory, a_device_reset_without_leaks_is_silent) {
  int* device = device_array<int>(3);
  int* pinned = pinned_array<int>(3);
  must(hipFree(device));
  must(hipHostFree(pinned));
  must(hipDeviceReset());
}

[[noreturn]] void end_with_a_leak() {
  hipsim::reset();
  int* device = nullptr;
  static_cast<void>(hipMalloc(&device, 12));
  std::exit(0);
}

[[noreturn]] void end_without_a_leak() {
  hipsim::reset();
  int* device = nullptr;
  static_cast<void>(hipMalloc(&device, 12));
  static_cast<void>(hipFree(device));
  std::exit(0);
}

TEST_F(Memory, a_leak_is_reported_at_the_end_of_the_process) {
  EXPECT_DEATH(end_with_a_leak(), "leak.*memory_test.cpp");
}

TEST_F(Memory, a_process_without_leaks_ends_in_silence) {
  EXPECT_EXIT(end_without_a_leak(), testing::ExitedWithCode(0), "^$");
}

// ---- who calls ------------------------------------------------------------------------------------------------------

TEST_F(Memory, calls_from_a_second_thread_are_refused) {
  must(hipInit(0));
  hipError_t malloc_error = hipSuccess;
  hipError_t wait_error = hipSuccess;
  std::thread other([&] {
    void* device = nullptr;
    malloc_error = hipMalloc(&device, 4);
    wait_error = hipDeviceSynchronize();
  });
  other.join();
  EXPECT_EQ(malloc_error, hipErrorNotSupported);
  EXPECT_EQ(wait_error, hipErrorNotSupported);
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
  must(hipDeviceSynchronize());
}

TEST_F(Memory, a_source_rewritten_is_reported_whatever_else_was_read_back) {
  follow_rules(hipsim::Rules::portable);
  int* const device = device_array<int>(4);
  int* const other = device_copy(std::vector<int>{1, 2, 3, 4});
  std::vector<int> source{1, 2, 3, 4};
  std::vector<int> back(4);
  hipStream_t stream = make_stream();
  must(hipMemcpyAsync(back.data(), other, 16, hipMemcpyDeviceToHost, stream));
  must(hipMemcpyAsync(device, source.data(), 16, hipMemcpyHostToDevice, stream));
  source[0] = 9;
  must(hipStreamSynchronize(stream));
  EXPECT_TRUE(contains(take_report(hipsim::Report::source_changed), "16-byte copy"));
  must(hipStreamDestroy(stream));
  must(hipFree(device));
  must(hipFree(other));
}

__global__ void set_to_one(int* value) { *value = 1; }

TEST_F(Memory, work_on_freed_memory_that_was_reported_does_not_run) {
  follow_rules(hipsim::Rules::portable);
  int* const device = device_array<int>(1);
  hipLaunchKernelGGL(set_to_one, dim3(1), dim3(1), 0, nullptr, device);
  must(hipFree(device));
  EXPECT_TRUE(contains(take_report(hipsim::Report::free_while_queued), "kernel set_to_one"));
  must(hipDeviceSynchronize());
}

TEST_F(Memory, a_handler_of_reports_may_not_call_back) {
  follow_rules(hipsim::Rules::portable);
  static hipError_t answer = hipSuccess;
  hipsim::set_report_handler([](const hipsim::Report&) {
    answer = hipDeviceSynchronize();
    hipsim::reset();
  });
  int* const device = device_array<int>(1);
  hipLaunchKernelGGL(set_to_one, dim3(1), dim3(1), 0, nullptr, device);
  must(hipFree(device));
  EXPECT_EQ(answer, hipErrorNotSupported);
  must(hipDeviceSynchronize());
}

/// Words that no argument put there are no pointers: kernels are stored in memory that others have used.
TEST_F(Memory, what_lies_between_arguments_is_no_use_of_memory) {
  int* const used = device_array<int>(1);
  int* const freed = device_array<int>(1);
  std::vector<std::vector<const int*>> leftovers(200, std::vector<const int*>(8, freed));
  leftovers.clear();
  for (int i = 0; i < 50; ++i) hipLaunchKernelGGL(set_to_one, dim3(1), dim3(1), 0, nullptr, used);
  must(hipFree(freed));
  must(hipDeviceSynchronize());
  must(hipFree(used));
}

}  // namespace
