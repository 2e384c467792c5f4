// What lanes of a warp tell each other in kernels that do not tell their blocks: right where there is no loop, and
// reported where the path cannot be told.
#include "runtime_test.hpp"

#include "warp_broken_library.hpp"

#include <cstdint>

namespace {

using namespace hipsim_test;

class PlainWarp : public Runtime {
 protected:
  /// The report of a launch of one warp, empty when there is none.
  static std::string report_of(void (*kernel)(int*), std::uint32_t num_threads = 64) {
    int* out = device_array<int>(num_threads);
    hipLaunchKernelGGL(kernel, dim3(1), dim3(num_threads), 0, nullptr, out);
    static_cast<void>(hipDeviceSynchronize());
    const std::string text = reports.empty() ? std::string{} : take_report(hipsim::Report::lanes_undecided);
    static_cast<void>(hipDeviceReset());
    reports.clear();
    return text;
  }
};

__device__ int count_of(int predicate) { return __popcll(__ballot(predicate)); }

__global__ void calls_a_helper_in_both_branches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 60) return;
  if (i < 20)
    out[i] = count_of(1);
  else
    out[i] = count_of(1);
  out[i] += 100 * count_of(1);
}
TEST_F(PlainWarp, branches_are_told_apart_without_a_word_of_the_kernel) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    configure(seed);
    int* out = device_array<int>(64);
    hipLaunchKernelGGL(calls_a_helper_in_both_branches, dim3(1), dim3(64), 0, nullptr, out);
    const std::vector<int> got = host_copy(out, 60);
    for (int i = 0; i < 60; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 6000 + (i < 20 ? 20 : 40)) << "lane " << i;
    must(hipFree(out));
  }
}

constexpr int loop_line = __LINE__ + 3;
__global__ void loops(int* out) {
  int met = 0;
  for (std::uint32_t i = 0; i <= threadIdx.x % 3 + gridDim.x; ++i) met += __popcll(__ballot(1));
  out[threadIdx.x] = met;
}
TEST_F(PlainWarp, an_operation_in_a_loop_is_reported_with_the_way_out) {
  const std::string text = report_of(loops);
  EXPECT_TRUE(contains(text, "kernel ")) << text;
  EXPECT_TRUE(contains(text, "warp_plain_test.cpp:" + std::to_string(loop_line))) << text;
  EXPECT_TRUE(contains(text, "hipsim_trace_control_flow")) << text;
}

/// All lanes come for the first time, and not in the same round. A compiler that takes the loop apart leaves nothing to
/// be told.
__global__ void comes_once_in_a_loop(int* out) {
  int met = 0;
  for (std::uint32_t round = 0; round < 1 + gridDim.x; ++round)
    if (threadIdx.x < 20 ? round == 0 : round == 1) met += count_of(1);
  out[threadIdx.x] = met;
}
TEST_F(PlainWarp, lanes_that_come_once_in_different_rounds_are_reported_or_told_apart) {
  int* out = device_array<int>(64);
  hipLaunchKernelGGL(comes_once_in_a_loop, dim3(1), dim3(64), 0, nullptr, out);
  if (hipDeviceSynchronize() != hipSuccess) {
    EXPECT_TRUE(contains(take_report(hipsim::Report::lanes_undecided), "hipsim_trace_control_flow"));
    return;
  }
  const std::vector<int> got = host_copy(out, 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], i < 20 ? 20 : 44) << "lane " << i;
}

__global__ void loops_elsewhere(int* out) {
  int sum = 0;
  for (std::uint32_t i = 0; i < threadIdx.x + gridDim.x; ++i) sum += out[i % 4] & 0;
  sum += count_of(1);
  for (std::uint32_t i = 0; i < threadIdx.x + gridDim.x; ++i) sum += out[i % 4] & 0;
  out[threadIdx.x] = sum;
}
TEST_F(PlainWarp, loops_before_and_after_an_operation_are_no_matter) { EXPECT_EQ(report_of(loops_elsewhere), ""); }

__global__ void calls_a_library_without_options(int* out) { out[threadIdx.x] = count_without_options(1); }
TEST_F(PlainWarp, a_library_compiled_without_the_options_is_reported) {
  const std::string text = report_of(calls_a_library_without_options);
  EXPECT_TRUE(contains(text, "without hipsim's options")) << text;
  EXPECT_TRUE(contains(text, "warp_broken_library.cpp:")) << text;
}

int count_back(int predicate) { return count_of(predicate); }
__global__ void is_called_back(int* out) { out[threadIdx.x] = call_without_frames(count_back, 1); }
TEST_F(PlainWarp, a_function_without_a_frame_on_the_way_is_reported) {
  const std::string text = report_of(is_called_back);
  EXPECT_TRUE(contains(text, "without frame pointers")) << text;
}

__device__ void wait_for_all() { __syncthreads(); }
__global__ void comes_late(int* out) {
  if (threadIdx.x < 32) wait_for_all();
  out[threadIdx.x] = count_of(1);
  if (threadIdx.x >= 32) wait_for_all();
}
/// The barrier stands in a function, so that it is one for all: half a warp waits there while the other half votes.
TEST_F(PlainWarp, lanes_that_come_late_to_a_meeting_are_reported) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    start_over();
    configure(seed);
    const std::string text = report_of(comes_late);
    EXPECT_TRUE(contains(text, "threads 0 to 31 come late to the warp operation at ")) << text;
  }
}

}  // namespace
