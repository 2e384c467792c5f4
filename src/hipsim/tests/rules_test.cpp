// Where AMD and CUDA promise different things: what the runtime does by the rules of each, as the table in README.md
// says.
#include "runtime_test.hpp"

namespace {

using namespace hipsim_test;

class ByRules : public Runtime, public testing::WithParamInterface<hipsim::Rules> {
 protected:
  void SetUp() override {
    Runtime::SetUp();
    follow_rules(GetParam());
  }
  static bool is_amd() { return GetParam() == hipsim::Rules::amd; }
};

INSTANTIATE_TEST_SUITE_P(Of, ByRules, testing::Values(hipsim::Rules::amd, hipsim::Rules::portable),
                         [](const auto& info) { return name(info.param); });

__global__ void set_to(int* at, int value) { *at = value; }
__global__ void copy_word(const int* from, int* to) { *to = *from; }
__global__ void takes_nothing() {}
__global__ void leaves_out_thread_1() {
  if (threadIdx.x != 1) __syncthreads();
}

int device_word(const int* device) { return host_copy(device, 1)[0]; }

// ---- sets and copies within device memory ---------------------------------------------------------------------------

constexpr std::uint64_t many_seeds = 32;
/// Seeds that have to show a race: the others run the late work first by chance.
constexpr int most_seeds = 20;

/// Seeds under which `program`, on a stream that does not wait for the null stream, finds something else than `right`.
template <class Program>
int seeds_that_show(Program program, int right) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    const hipsim::Rules rules = hipsim::config().rules;
    configure(seed);
    follow_rules(rules);
    int* out = pinned_array<int>(1);
    hipStream_t stream = make_stream(hipStreamNonBlocking);
    program(stream, out);
    wrong += *out != right ? 1 : 0;
    must(hipDeviceSynchronize());
  }
  return wrong;
}

TEST_P(ByRules, a_set_of_device_memory_is_late) {
  const auto read_early = [](hipStream_t stream, int* out) {
    int* device = device_copy(std::vector<int>{9});
    must(hipMemset(device, 0, 4));
    hipLaunchKernelGGL(copy_word, dim3(1), dim3(1), 0, stream, device, out);
    must(hipStreamSynchronize(stream));
  };
  EXPECT_GE(seeds_that_show(read_early, 0), most_seeds);
}

TEST_P(ByRules, a_set_of_device_memory_comes_down_on_what_was_written_since) {
  const auto write_early = [](hipStream_t stream, int* out) {
    int* device = device_array<int>(1);
    must(hipMemset(device, 0, 4));
    hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 9);
    must(hipStreamSynchronize(stream));
    must(hipDeviceSynchronize());
    *out = device_word(device);
  };
  EXPECT_GE(seeds_that_show(write_early, 9), most_seeds);
}

TEST_P(ByRules, a_copy_within_device_memory_is_late) {
  const auto read_early = [](hipStream_t stream, int* out) {
    int* from = device_copy(std::vector<int>{9});
    int* to = device_copy(std::vector<int>{1});
    must(hipMemcpy(to, from, 4, hipMemcpyDeviceToDevice));
    hipLaunchKernelGGL(copy_word, dim3(1), dim3(1), 0, stream, to, out);
    must(hipStreamSynchronize(stream));
  };
  EXPECT_GE(seeds_that_show(read_early, 9), most_seeds);
}

TEST_P(ByRules, a_stream_that_waits_for_the_null_stream_sees_sets_and_copies) {
  for (std::uint64_t seed = 0; seed < many_seeds; ++seed) {
    configure(seed);
    follow_rules(GetParam());
    int* from = device_copy(std::vector<int>{9});
    int* to = device_array<int>(1);
    int* out = pinned_array<int>(2);
    hipStream_t stream = make_stream();
    must(hipMemcpy(to, from, 4, hipMemcpyDeviceToDevice));
    must(hipMemset(from, 0, 4));
    hipLaunchKernelGGL(copy_word, dim3(1), dim3(1), 0, stream, to, out);
    hipLaunchKernelGGL(copy_word, dim3(1), dim3(1), 0, stream, from, out + 1);
    must(hipStreamSynchronize(stream));
    EXPECT_EQ(out[0], 9);
    EXPECT_EQ(out[1], 0);
  }
}

TEST_P(ByRules, a_set_of_pinned_memory_and_a_copy_with_the_host_have_run_on_return) {
  int* pinned = pinned_array<int>(1);
  int* device = device_copy(std::vector<int>{7});
  must(hipMemset(pinned, 0, 4));
  EXPECT_EQ(*pinned, 0);
  must(hipMemcpy(pinned, device, 4, hipMemcpyDeviceToHost));
  EXPECT_EQ(*pinned, 7);
}

// ---- pageable memory ------------------------------------------------------------------------------------------------

TEST_P(ByRules, a_pageable_source_may_be_used_again_at_once_on_amd_alone) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* device = device_array<int>(1);
  int source = 1;
  must(hipMemcpyAsync(device, &source, 4, hipMemcpyHostToDevice, stream));
  source = 2;
  must(hipStreamSynchronize(stream));
  if (!is_amd()) {
    EXPECT_FALSE(take_report(hipsim::Report::source_changed).empty());
  }
  EXPECT_EQ(device_word(device), is_amd() ? 1 : 2);
}

TEST_P(ByRules, a_pageable_source_may_be_used_again_after_a_wait) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* device = device_array<int>(1);
  int source = 1;
  must(hipMemcpyAsync(device, &source, 4, hipMemcpyHostToDevice, stream));
  must(hipStreamSynchronize(stream));
  source = 2;
  EXPECT_EQ(device_word(device), 1);
}

TEST_P(ByRules, a_pageable_result_is_there_on_return_on_amd_alone) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* device = device_array<int>(1);
  std::vector<int> result{0};
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 7);
  must(hipMemcpyAsync(result.data(), device, 4, hipMemcpyDeviceToHost, stream));
  // AddressSanitizer would stop a read of what is not there yet.
  if (is_amd()) {
    EXPECT_EQ(result[0], 7);
  }
  if (!is_amd() && !has_address_sanitizer) {
    EXPECT_EQ(result[0], 0);
  }
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(result[0], 7);
}

TEST_P(ByRules, a_pinned_result_is_late) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer would stop the read: sanitizer_test";
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* device = device_copy(std::vector<int>{7});
  int* result = pinned_array<int>(1);
  *result = 0;
  must(hipMemcpyAsync(result, device, 4, hipMemcpyDeviceToHost, stream));
  EXPECT_EQ(*result, 0);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(*result, 7);
}

TEST_P(ByRules, a_copy_between_two_ends_on_the_host_has_run_on_return) {
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  int* pinned = pinned_array<int>(1);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, pinned, 5);
  std::vector<int> pageable{0, 0};
  must(hipMemcpyAsync(pageable.data(), pinned, 4, hipMemcpyHostToHost, stream));
  EXPECT_EQ(pageable[0], 5);
  must(hipMemcpyAsync(pageable.data() + 1, pageable.data(), 4, hipMemcpyDefault, stream));
  EXPECT_EQ(pageable[1], 5);
}

TEST_P(ByRules, a_copy_of_pageable_memory_is_captured_like_any_other) {
  static int source = 0;
  source = 1;
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  must(hipMemcpyAsync(device, &source, 4, hipMemcpyHostToDevice, stream));
  must(hipStreamEndCapture(stream, &graph));
  must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
  source = 2;
  must(hipGraphLaunch(exec, stream));
  EXPECT_EQ(device_word(device), 2);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

TEST_P(ByRules, zero_bytes_are_null_and_success_on_amd_alone) {
  int untouched = 0;
  for (const auto allocate :
       {+[](int** at) { return hipMalloc(at, 0); }, +[](int** at) { return hipHostMalloc(at, 0); }}) {
    int* made = &untouched;
    EXPECT_EQ(allocate(&made), is_amd() ? hipSuccess : hipErrorInvalidValue);
    EXPECT_EQ(made, nullptr);
  }
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
  EXPECT_EQ(hipsim::counters().allocations, 0);
  must(hipFree(nullptr));
}

TEST_P(ByRules, a_free_waits_for_what_uses_the_memory_on_amd_alone) {
  int* device = device_array<int>(1);
  int* pinned = pinned_array<int>(1);
  int* result = pinned_array<int>(1);
  *result = 0;
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  for (const bool is_pinned : {false, true}) {
    int* const used = is_pinned ? pinned : device;
    hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, used, 3);
    hipLaunchKernelGGL(copy_word, dim3(1), dim3(1), 0, stream, used, result);
    hipsim::reset_counters();
    must(is_pinned ? hipHostFree(used) : hipFree(used));
    EXPECT_EQ(hipsim::counters().synchronisations, is_amd() ? 1 : 0);
    if (is_amd()) {
      EXPECT_EQ(std::exchange(*result, 0), 3);
    }
    if (!is_amd()) {
      EXPECT_TRUE(contains(take_report(hipsim::Report::free_while_queued), "kernel set_to"));
    }
    must(hipStreamSynchronize(stream));
  }
}

TEST_P(ByRules, a_free_of_other_memory_waits_on_amd_alone) {
  int* other = device_array<int>(1);
  int* result = pinned_array<int>(1);
  *result = 0;
  hipStream_t stream = make_stream(hipStreamNonBlocking);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, result, 3);
  must(hipFree(nullptr));
  EXPECT_EQ(*result, 0);
  must(hipFree(other));
  EXPECT_EQ(*result, is_amd() ? 3 : 0);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(*result, 3);
}

TEST_P(ByRules, a_kernel_that_a_free_has_waited_for_and_was_reported_is_told) {
  if (!is_amd()) GTEST_SKIP() << "only AMD's free waits";
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  hipLaunchKernelGGL(leaves_out_thread_1, dim3(1), dim3(2), 0, stream);
  EXPECT_EQ(hipFree(device), hipErrorLaunchFailure);
  EXPECT_FALSE(take_report(hipsim::Report::barrier_not_reached).empty());
  EXPECT_EQ(hipsim::counters().live_allocations, 0);
}

TEST_P(ByRules, pinned_memory_is_either_end_of_any_direction_on_amd_alone) {
  int* first = pinned_array<int>(1);
  int* second = pinned_array<int>(1);
  int* device = device_array<int>(1);
  int host = 0;
  const hipError_t expected = is_amd() ? hipSuccess : hipErrorInvalidMemcpyDirection;
  *first = 3;
  *second = 0;
  EXPECT_EQ(hipMemcpy(second, first, 4, hipMemcpyDeviceToDevice), expected);
  EXPECT_EQ(*second, is_amd() ? 3 : 0);
  EXPECT_EQ(hipMemcpy(second, first, 4, hipMemcpyHostToDevice), expected);
  EXPECT_EQ(hipMemcpy(device, first, 4, hipMemcpyDeviceToDevice), expected);
  EXPECT_EQ(hipMemcpy(&host, first, 4, hipMemcpyDeviceToHost), expected);
  EXPECT_EQ(host, is_amd() ? 3 : 0);
  must(hipMemcpy(second, first, 4, hipMemcpyDefault));
  must(hipMemcpy(device, first, 4, hipMemcpyHostToDevice));
  EXPECT_EQ(hipMemcpy(device, &host, 4, hipMemcpyDeviceToDevice), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpy(first, device, 4, hipMemcpyHostToHost), hipErrorInvalidMemcpyDirection);
}

// ---- launches -------------------------------------------------------------------------------------------------------

TEST_P(ByRules, a_launch_of_two_to_the_32_threads_is_refused) {
  const auto error = [](dim3 grid, dim3 block) {
    hipLaunchKernelGGL(takes_nothing, grid, block, 0, nullptr);
    return hipGetLastError();
  };
  EXPECT_EQ(error(dim3(8388608), dim3(512)), hipErrorInvalidConfiguration);
  EXPECT_TRUE(contains(hipsim::last_message(), "at most 4294967295 threads")) << hipsim::last_message();
  EXPECT_EQ(error(dim3(67108864), dim3(128)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1073741824), dim3(1024)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(2147483647), dim3(1024)), hipErrorInvalidConfiguration);
  // No dimension has as many, the launch has.
  EXPECT_EQ(error(dim3(20000, 2047), dim3(128)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(2147483647, 65535, 65535), dim3(1)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1, 65536), dim3(1)), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1, 1, 65536), dim3(1)), hipErrorInvalidConfiguration);
  EXPECT_EQ(hipsim::counters().launches, 0);
  // As large as can be. Never run: the end of the test drops it.
  EXPECT_EQ(error(dim3(8388607), dim3(512)), hipSuccess);
  EXPECT_EQ(error(dim3(1, 65535, 65535), dim3(1)), hipSuccess);
  EXPECT_EQ(hipsim::counters().launches, 2);
}

TEST_P(ByRules, what_a_block_may_have_is_what_the_device_says) {
  hipDeviceProp_t properties{};
  must(hipGetDeviceProperties(&properties, 0));
  EXPECT_EQ(properties.maxThreadsDim[2], is_amd() ? 1024 : 64);
  EXPECT_EQ(properties.sharedMemPerBlock, is_amd() ? 65536u : 49152u);
  const auto error = [](dim3 block, std::size_t shared_bytes) {
    hipLaunchKernelGGL(takes_nothing, dim3(1), block, shared_bytes, nullptr);
    return hipGetLastError();
  };
  const auto deepest = static_cast<std::uint32_t>(properties.maxThreadsDim[2]);
  EXPECT_EQ(error(dim3(1, 1, deepest), properties.sharedMemPerBlock), hipSuccess);
  EXPECT_EQ(error(dim3(1, 1, deepest + 1), 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error(dim3(1), properties.sharedMemPerBlock + 1), hipErrorInvalidConfiguration);
}

// ---- captures -------------------------------------------------------------------------------------------------------

hipStreamCaptureStatus status(hipStream_t stream) {
  hipStreamCaptureStatus now = hipStreamCaptureStatusNone;
  must(hipStreamIsCapturing(stream, &now));
  return now;
}

TEST_P(ByRules, a_relaxed_capture_bears_work_on_the_null_stream_on_amd_alone) {
  int* device = device_copy(std::vector<int>{1});
  hipStream_t stream = make_stream();
  hipGraph_t graph = nullptr;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 4);
  EXPECT_EQ(hipGetLastError(), is_amd() ? hipSuccess : hipErrorStreamCaptureImplicit);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), is_amd() ? hipSuccess : hipErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph != nullptr, is_amd());
  EXPECT_EQ(device_word(device), is_amd() ? 4 : 1);
}

TEST_P(ByRules, a_relaxed_capture_bears_no_copy_that_blocks) {
  int* device = device_copy(std::vector<int>{1});
  hipStream_t stream = make_stream();
  hipGraph_t graph = nullptr;
  int host = 0;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
  EXPECT_EQ(hipMemcpy(&host, device, 4, hipMemcpyDeviceToHost), hipErrorStreamCaptureImplicit);
  EXPECT_EQ(status(stream), hipStreamCaptureStatusInvalidated);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureInvalidated);
}

TEST_P(ByRules, any_other_capture_bears_no_work_on_the_null_stream) {
  for (const auto mode : {hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal}) {
    int* device = device_copy(std::vector<int>{1});
    hipStream_t stream = make_stream();
    hipGraph_t graph = nullptr;
    must(hipStreamBeginCapture(stream, mode));
    hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 4);
    EXPECT_EQ(hipGetLastError(), hipErrorStreamCaptureImplicit);
    EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureInvalidated);
  }
}

TEST_P(ByRules, memory_may_be_freed_in_a_relaxed_capture) {
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  hipGraph_t graph = nullptr;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
  must(hipFree(device));
  must(hipStreamEndCapture(stream, &graph));
}

/// As measured on an MI300X, where the next hipStreamEndCapture ends the process.
TEST_P(ByRules, a_capture_with_work_that_is_not_joined_leaves_streams_that_can_only_be_destroyed) {
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  hipStream_t side = make_stream();
  hipEvent_t fork = make_event();
  hipGraph_t graph = nullptr;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed));
  must(hipEventRecord(fork, stream));
  must(hipStreamWaitEvent(side, fork, 0));
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, side, device, 4);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureUnjoined);
    EXPECT_EQ(graph, nullptr);
  }
  EXPECT_EQ(status(stream), hipStreamCaptureStatusActive);
  EXPECT_EQ(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed), hipErrorIllegalState);
  hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, 4);
  EXPECT_EQ(hipGetLastError(), hipErrorStreamCaptureInvalidated);
  EXPECT_NE(hipStreamSynchronize(stream), hipSuccess);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureUnjoined);
  must(hipStreamDestroy(stream));
  // The process goes on.
  hipStream_t next = make_stream();
  must(hipStreamBeginCapture(next, hipStreamCaptureModeRelaxed));
  must(hipStreamEndCapture(next, &graph));
}

TEST_P(ByRules, an_update_of_a_graph_that_is_made_to_fail_says_so_in_its_result) {
  int* device = device_array<int>(1);
  hipStream_t stream = make_stream();
  const auto capture = [&](int value) {
    hipGraph_t graph = nullptr;
    must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, stream, device, value);
    must(hipStreamEndCapture(stream, &graph));
    return graph;
  };
  hipGraphExec_t exec = nullptr;
  must(hipGraphInstantiate(&exec, capture(1), nullptr, nullptr, 0));
  hipGraphExecUpdateResult result = hipGraphExecUpdateSuccess;
  hipGraph_t next = capture(2);
  hipsim::fail_call("hipGraphExecUpdate", 1, hipErrorGraphExecUpdateFailure);
  EXPECT_EQ(hipGraphExecUpdate(exec, next, nullptr, &result), hipErrorGraphExecUpdateFailure);
  EXPECT_EQ(result, hipGraphExecUpdateError);
  must(hipGraphLaunch(exec, stream));
  EXPECT_EQ(device_word(device), 1);
  must(hipGraphExecUpdate(exec, next, nullptr, &result));
  EXPECT_EQ(result, hipGraphExecUpdateSuccess);
  must(hipGraphLaunch(exec, stream));
  EXPECT_EQ(device_word(device), 2);
}

TEST_P(ByRules, an_update_with_a_graph_that_is_not_there_says_so_in_its_result) {
  hipGraphExecUpdateResult result = hipGraphExecUpdateSuccess;
  EXPECT_EQ(hipGraphExecUpdate(nullptr, nullptr, nullptr, &result), hipErrorInvalidHandle);
  EXPECT_EQ(result, hipGraphExecUpdateError);
}

TEST(Rules, are_named_in_what_ends_the_process) {
  hipsim::reset();
  EXPECT_DEATH(
      {
        follow_rules(hipsim::Rules::portable);
        int* device = device_array<int>(1);
        hipLaunchKernelGGL(set_to, dim3(1), dim3(1), 0, nullptr, device, 1);
        static_cast<void>(hipFree(device));
      },
      "hipsim: free while queued \\(portable rules\\): ");
}

}  // namespace
