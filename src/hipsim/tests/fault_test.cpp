// Faults on request, and what is counted.
#include "runtime_test.hpp"

#include <functional>

namespace {

using namespace hipsim_test;

class Fault : public Runtime {};
class Counted : public Runtime {};

__global__ void set_to(int* at, int value) { *at = value; }

// ---- faults ---------------------------------------------------------------------------------------------------------

TEST_F(Fault, the_next_call_fails_with_the_error_chosen) {
  void* device = nullptr;
  hipsim::fail_call(1, hipErrorOutOfMemory);
  EXPECT_EQ(hipMalloc(&device, 4), hipErrorOutOfMemory);
  EXPECT_EQ(device, nullptr);
  EXPECT_EQ(hipsim::failed_function(), "hipMalloc");
  EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
  must(hipMalloc(&device, 4));
  EXPECT_TRUE(hipsim::clear_fault());
}

TEST_F(Fault, the_nth_call_of_any_kind_fails_and_no_other) {
  for (std::int64_t n = 1; n <= 5; ++n) {
    start_over();
    int value = 3;
    int* device = nullptr;
    hipsim::fail_call(n, hipErrorUnknown);
    const std::vector<std::function<hipError_t()>> calls = {
        [&] { return hipMalloc(&device, 4); },   [&] { return hipMemcpy(device, &value, 4, hipMemcpyHostToDevice); },
        [&] { return hipMemset(device, 0, 4); }, [&] { return hipDeviceSynchronize(); },
        [&] { return hipFree(device); },
    };
    for (std::int64_t i = 1; i <= 5; ++i) {
      const hipError_t error = calls[static_cast<std::size_t>(i - 1)]();
      if (i == n) {
        EXPECT_EQ(error, hipErrorUnknown) << "call " << i;
        continue;
      }
      // Without memory the copy and the set have nothing to work on.
      const bool follows = n == 1 && (i == 2 || i == 3);
      if (!follows) {
        EXPECT_EQ(error, hipSuccess) << "call " << i << ", the failing one is " << n;
      }
    }
    EXPECT_TRUE(hipsim::clear_fault());
  }
}

TEST_F(Fault, the_nth_call_of_one_function_fails_and_no_other) {
  void* first = nullptr;
  void* second = nullptr;
  void* third = nullptr;
  hipsim::fail_call("hipMalloc", 2, hipErrorOutOfMemory);
  must(hipMalloc(&first, 4));
  must(hipDeviceSynchronize());
  must(hipHostMalloc(&third, 4));
  EXPECT_EQ(hipMalloc(&second, 4), hipErrorOutOfMemory);
  must(hipMalloc(&second, 4));
  EXPECT_TRUE(hipsim::clear_fault());
  EXPECT_FALSE(hipsim::clear_fault());
}

TEST_F(Fault, a_launch_that_fails_says_so_in_the_last_error_and_does_not_run) {
  int* device = device_copy(std::vector<int>{1});
  hipsim::fail_call("hipLaunchKernel", 1, hipErrorLaunchOutOfResources);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 5);
  EXPECT_EQ(hipGetLastError(), hipErrorLaunchOutOfResources);
  EXPECT_EQ(hipsim::failed_function(), "hipLaunchKernel");
  EXPECT_EQ(host_copy(device, 1)[0], 1);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 5);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
  EXPECT_EQ(host_copy(device, 1)[0], 5);
}

TEST_F(Fault, a_failed_call_has_no_effect) {
  int host = 9;
  int* device = device_copy(std::vector<int>{1});
  const auto fails = [](hipError_t error) { return error == hipErrorUnknown; };
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_TRUE(fails(hipMemcpy(device, &host, 4, hipMemcpyHostToDevice)));
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_TRUE(fails(hipMemcpyAsync(device, &host, 4, hipMemcpyHostToDevice)));
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_TRUE(fails(hipMemsetAsync(device, 0, 4)));
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_TRUE(fails(hipFree(device)));
  EXPECT_EQ(host_copy(device, 1)[0], 1);
  must(hipFree(device));
}

TEST_F(Fault, a_synchronisation_that_fails_has_not_waited) {
  int* pinned = pinned_array<int>(1);
  *pinned = 1;
  hipStream_t stream = make_stream();
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, pinned, 5);
  hipsim::fail_call("hipStreamSynchronize", 1, hipErrorUnknown);
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorUnknown);
  EXPECT_EQ(hipStreamQuery(stream), hipErrorNotReady);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(*pinned, 5);
}

TEST_F(Fault, streams_events_and_graphs_can_be_made_to_fail) {
  hipStream_t stream = nullptr;
  hipEvent_t event = nullptr;
  hipGraph_t graph = nullptr;
  hipsim::fail_call("hipStreamCreateWithFlags", 1, hipErrorUnknown);
  EXPECT_EQ(hipStreamCreateWithFlags(&stream, 0), hipErrorUnknown);
  hipsim::fail_call("hipEventCreateWithFlags", 1, hipErrorUnknown);
  EXPECT_EQ(hipEventCreateWithFlags(&event, 0), hipErrorUnknown);
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(hipsim::counters().live_handles, 0);
  must(hipStreamCreate(&stream));
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  hipsim::fail_call("hipStreamEndCapture", 1, hipErrorUnknown);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorUnknown);
  must(hipStreamEndCapture(stream, &graph));
  hipGraphExec_t exec = nullptr;
  hipsim::fail_call("hipGraphInstantiate", 1, hipErrorOutOfMemory);
  EXPECT_EQ(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), hipErrorOutOfMemory);
  EXPECT_EQ(exec, nullptr);
}

TEST_F(Fault, a_new_fault_replaces_the_old_and_clearing_takes_it_back) {
  hipsim::fail_call(1, hipErrorUnknown);
  hipsim::fail_call("hipFree", 1, hipErrorOutOfMemory);
  must(hipDeviceSynchronize());
  EXPECT_FALSE(hipsim::clear_fault());
  must(hipFree(nullptr));
  EXPECT_EQ(hipsim::failed_function(), "");
}

TEST_F(Fault, resetting_takes_it_back) {
  hipsim::fail_call(1, hipErrorUnknown);
  start_over();
  must(hipDeviceSynchronize());
}

TEST_F(Fault, the_message_of_an_injected_error_is_empty) {
  EXPECT_EQ(hipFree(this), hipErrorInvalidValue);
  EXPECT_NE(hipsim::last_message(), "");
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorUnknown);
  EXPECT_EQ(hipsim::last_message(), "");
}

/// Fails each call in turn, as a test of code that uses HIP would: what forgets to free on one path is found.
bool careless_copy(int* to) {
  int* device = nullptr;
  if (hipMalloc(&device, 4) != hipSuccess) return false;
  if (hipMemset(device, 1, 4) != hipSuccess) return false;
  const bool is_copied = hipMemcpy(to, device, 4, hipMemcpyDeviceToHost) == hipSuccess;
  return hipFree(device) == hipSuccess && is_copied;
}

TEST_F(Fault, a_leak_on_an_error_path_is_found_by_failing_each_call_in_turn) {
  std::vector<std::int64_t> leaking;
  for (std::int64_t n = 1;; ++n) {
    start_over();
    int result = 0;
    hipsim::fail_call(n, hipErrorUnknown);
    const bool is_right = careless_copy(&result);
    EXPECT_NE(is_right, hipsim::clear_fault());
    if (hipsim::failed_function().empty()) break;
    if (hipsim::counters().live_allocations > 0) leaking.push_back(n);
  }
  EXPECT_EQ(leaking, (std::vector<std::int64_t>{2, 4}));
}

// ---- counters -------------------------------------------------------------------------------------------------------

TEST_F(Counted, bytes_go_by_direction) {
  std::vector<char> host(100);
  char* device = device_array<char>(100);
  char* pinned = pinned_array<char>(100);
  must(hipMemcpy(device, host.data(), 1, hipMemcpyHostToDevice));
  must(hipMemcpyAsync(device, pinned, 2, hipMemcpyHostToDevice));
  must(hipMemcpy(host.data(), device, 4, hipMemcpyDeviceToHost));
  must(hipMemcpyAsync(pinned, device, 8, hipMemcpyDeviceToHost));
  must(hipMemcpy(device + 50, device, 16, hipMemcpyDeviceToDevice));
  must(hipMemcpy(host.data(), pinned, 32, hipMemcpyHostToHost));
  must(hipMemset(device, 0, 64));
  must(hipMemsetAsync(device, 0, 3));
  must(hipDeviceSynchronize());
  const hipsim::Counters counters = hipsim::counters();
  EXPECT_EQ(counters.host_to_device_bytes, 3);
  EXPECT_EQ(counters.device_to_host_bytes, 12);
  EXPECT_EQ(counters.device_to_device_bytes, 16);
  EXPECT_EQ(counters.host_to_host_bytes, 32);
  EXPECT_EQ(counters.memset_bytes, 67);
}

TEST_F(Counted, calls_allocations_and_frees) {
  hipsim::reset_counters();
  int* device = device_array<int>(2);
  int* pinned = pinned_array<int>(4);
  EXPECT_EQ(hipsim::counters().calls, 2);
  EXPECT_EQ(hipsim::counters().allocations, 2);
  EXPECT_EQ(hipsim::counters().live_allocations, 2);
  EXPECT_EQ(hipsim::counters().live_bytes, 24);
  must(hipFree(device));
  must(hipHostFree(pinned));
  EXPECT_EQ(hipsim::counters().calls, 4);
  EXPECT_EQ(hipsim::counters().frees, 2);
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
  EXPECT_EQ(hipsim::counters().live_bytes, 0);
}

TEST_F(Counted, calls_of_one_function) {
  int* device = device_array<int>(2);
  must(hipFree(device));
  device = device_array<int>(2);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 5);
  EXPECT_EQ(hipsim::calls_of("hipMalloc"), 2);
  EXPECT_EQ(hipsim::calls_of("hipFree"), 1);
  EXPECT_EQ(hipsim::calls_of("hipLaunchKernel"), 1);
  EXPECT_EQ(hipsim::calls_of("hipMemcpy"), 0);
  hipsim::reset_counters();
  EXPECT_EQ(hipsim::calls_of("hipMalloc"), 0);
}

TEST_F(Counted, launches_are_calls_and_captured_ones_count_when_they_run) {
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  hipsim::reset_counters();
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  EXPECT_EQ(hipsim::counters().launches, 1);
  EXPECT_EQ(hipsim::counters().calls, 1);
  must(hipStreamSynchronize(stream));
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 5);
  hipGraph_t graph = nullptr;
  must(hipStreamEndCapture(stream, &graph));
  EXPECT_EQ(hipsim::counters().launches, 1);
  hipGraphExec_t exec = nullptr;
  must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
  must(hipGraphLaunch(exec, stream));
  EXPECT_EQ(hipsim::counters().launches, 2);
  must(hipStreamSynchronize(stream));
}

/// Code that must not make the host wait is held to it by this number.
TEST_F(Counted, every_call_in_which_the_host_waits) {
  int host = 0;
  int* device = device_array<int>(1);
  int* pinned = pinned_array<int>(1);
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  hipsim::reset_counters();
  must(hipMemcpyAsync(device, pinned, 4, hipMemcpyHostToDevice, stream));
  must(hipMemsetAsync(device, 0, 4, stream));
  must(hipEventRecord(event, stream));
  must(hipStreamWaitEvent(nullptr, event, 0));
  static_cast<void>(hipEventQuery(event));
  EXPECT_EQ(hipsim::counters().synchronisations, 0);
  must(hipStreamSynchronize(stream));
  must(hipEventSynchronize(event));
  must(hipDeviceSynchronize());
  EXPECT_EQ(hipsim::counters().synchronisations, 3);
  must(hipMemcpy(&host, device, 4, hipMemcpyDeviceToHost));
  must(hipMemset(pinned, 0, 4));
  EXPECT_EQ(hipsim::counters().synchronisations, 5);
}

TEST_F(Counted, copies_and_sets_within_device_memory_do_not_make_the_host_wait) {
  int* first = device_array<int>(1);
  int* second = device_array<int>(1);
  hipsim::reset_counters();
  must(hipMemset(first, 0, 4));
  must(hipMemcpy(second, first, 4, hipMemcpyDeviceToDevice));
  EXPECT_EQ(hipsim::counters().synchronisations, 0);
}

TEST_F(Counted, copies_that_name_pageable_memory) {
  for (const hipsim::Rules rules : {hipsim::Rules::amd, hipsim::Rules::portable}) {
    start_over();
    follow_rules(rules);
    int host[2] = {};
    int* device = device_array<int>(1);
    int* pinned = pinned_array<int>(1);
    hipStream_t stream = make_stream();
    hipsim::reset_counters();
    must(hipMemcpyAsync(device, pinned, 4, hipMemcpyHostToDevice, stream));
    must(hipMemcpyAsync(pinned, device, 4, hipMemcpyDeviceToHost, stream));
    EXPECT_EQ(hipsim::counters().pageable_copies, 0);
    must(hipMemcpyAsync(device, host, 4, hipMemcpyHostToDevice, stream));
    must(hipMemcpyAsync(host, device, 4, hipMemcpyDeviceToHost, stream));
    must(hipMemcpyAsync(host + 1, host, 4, hipMemcpyHostToHost, stream));
    must(hipMemcpyAsync(pinned, host, 4, hipMemcpyHostToHost, stream));
    EXPECT_EQ(hipsim::counters().pageable_copies, 4);
    EXPECT_EQ(hipsim::counters().synchronisations, 0);
    must(hipStreamSynchronize(stream));
  }
}

TEST_F(Counted, streams_events_and_graphs_that_live) {
  EXPECT_EQ(hipsim::counters().live_handles, 0);
  hipStream_t stream = make_stream();
  hipEvent_t event = make_event();
  EXPECT_EQ(hipsim::counters().live_handles, 2);
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  must(hipStreamEndCapture(stream, &graph));
  must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
  EXPECT_EQ(hipsim::counters().live_handles, 4);
  must(hipGraphExecDestroy(exec));
  must(hipGraphDestroy(graph));
  must(hipEventDestroy(event));
  must(hipStreamDestroy(stream));
  EXPECT_EQ(hipsim::counters().live_handles, 0);
}

TEST_F(Counted, a_call_that_fails_is_a_call_and_nothing_else) {
  int host[2] = {};
  int* device = device_array<int>(1);
  hipsim::reset_counters();
  EXPECT_NE(hipMemcpy(device, host, 8, hipMemcpyHostToDevice), hipSuccess);
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_NE(hipMemcpy(device, host, 4, hipMemcpyHostToDevice), hipSuccess);
  hipsim::fail_call(1, hipErrorUnknown);
  EXPECT_NE(hipDeviceSynchronize(), hipSuccess);
  const hipsim::Counters counters = hipsim::counters();
  EXPECT_EQ(counters.calls, 3);
  EXPECT_EQ(counters.host_to_device_bytes, 0);
  EXPECT_EQ(counters.synchronisations, 0);
  EXPECT_EQ(hipsim::calls_of("hipMemcpy"), 2);
}

TEST_F(Counted, resetting_the_counters_keeps_what_lives) {
  device_array<int>(1);
  hipsim::reset_counters();
  EXPECT_EQ(hipsim::counters().allocations, 0);
  EXPECT_EQ(hipsim::counters().calls, 0);
  EXPECT_EQ(hipsim::counters().live_allocations, 1);
}

TEST_F(Fault, some_calls_fail_by_chance_and_the_same_ones_for_the_same_seed) {
  const auto failures = [](std::uint64_t seed) {
    std::string list;
    hipsim::fail_some(30, seed, hipErrorUnknown);
    for (int i = 0; i < 50; ++i) list += hipDeviceSynchronize() == hipErrorUnknown ? 'x' : '.';
    EXPECT_TRUE(hipsim::clear_fault());
    return list;
  };
  const std::string first = failures(1);
  EXPECT_EQ(failures(1), first);
  EXPECT_NE(failures(2), first);
  EXPECT_TRUE(contains(first, "."));
  EXPECT_TRUE(contains(first, "x"));
  must(hipDeviceSynchronize());
}

TEST_F(Counted, bytes_and_launches_count_each_time_a_graph_runs) {
  int* const device = device_array<int>(4);
  int* const host = pinned_array<int>(4);
  hipStream_t stream = make_stream();
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  must(hipMemcpyAsync(host, device, 16, hipMemcpyDeviceToHost, stream));
  hipGraph_t graph = nullptr;
  must(hipStreamEndCapture(stream, &graph));
  hipGraphExec_t exec = nullptr;
  must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
  EXPECT_EQ(hipsim::counters().device_to_host_bytes, 0);
  for (int i = 0; i < 3; ++i) must(hipGraphLaunch(exec, stream));
  EXPECT_EQ(hipsim::counters().device_to_host_bytes, 48);
  must(hipStreamSynchronize(stream));
  must(hipGraphExecDestroy(exec));
  must(hipGraphDestroy(graph));
  must(hipStreamDestroy(stream));
  must(hipFree(device));
  must(hipHostFree(host));
}

}  // namespace
