// Graphs: what is captured, what may not be called meanwhile, and replay on new data.
#include "runtime_test.hpp"

namespace {

using namespace hipsim_test;

class Capture : public Runtime {
 protected:
  static hipStream_t capturing_stream(hipStreamCaptureMode mode = hipStreamCaptureModeGlobal, HIPSIM_PLACE) {
    hipStream_t stream = make_stream(hipStreamDefault, place);
    must(hipStreamBeginCapture(stream, mode, place), place);
    return stream;
  }
  static hipStreamCaptureStatus status(hipStream_t stream) {
    hipStreamCaptureStatus now = hipStreamCaptureStatusNone;
    must(hipStreamIsCapturing(stream, &now));
    return now;
  }
  /// A call has just broken the capture: its end says so and makes no graph, and the stream can be used again.
  static void expect_invalidated(hipStream_t stream) {
    EXPECT_EQ(status(stream), hipStreamCaptureStatusInvalidated);
    hipGraph_t graph = nullptr;
    EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(stream), hipStreamCaptureStatusNone);
    must(hipStreamSynchronize(stream));
  }
};

class Graph : public Capture {
 protected:
  static hipGraph_t end(hipStream_t stream, HIPSIM_PLACE) {
    hipGraph_t graph = nullptr;
    must(hipStreamEndCapture(stream, &graph, place), place);
    return graph;
  }
  static hipGraphExec_t instantiate(hipGraph_t graph, HIPSIM_PLACE) {
    hipGraphExec_t exec = nullptr;
    must(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0, place), place);
    return exec;
  }
  static std::size_t num_nodes(hipGraph_t graph) {
    std::size_t count = 0;
    must(hipGraphGetNodes(graph, nullptr, &count));
    return count;
  }
};

__global__ void add(int* values, int amount) { values[threadIdx.x] += amount; }
__global__ void times(int* values, int factor) { values[threadIdx.x] *= factor; }
__global__ void sum_of(const int* first, const int* second, int* out) {
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

// ---- what keeps the rules -------------------------------------------------------------------------------------------

TEST_F(Graph, captured_work_does_not_run_until_it_is_launched) {
  int* values = device_copy(std::vector<int>{1, 2});
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(status(stream), hipStreamCaptureStatusActive);
  hipLaunchKernelGGL(add, dim3(1), dim3(2), 0, stream, values, 10);
  hipLaunchKernelGGL(times, dim3(1), dim3(2), 0, stream, values, 2);
  hipGraph_t graph = end(stream);
  EXPECT_EQ(status(stream), hipStreamCaptureStatusNone);
  EXPECT_EQ(num_nodes(graph), 2u);
  hipGraphExec_t exec = instantiate(graph);
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(host_copy(values, 2), (std::vector<int>{1, 2}));
  must(hipGraphLaunch(exec, stream));
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(host_copy(values, 2), (std::vector<int>{22, 24}));
  must(hipGraphExecDestroy(exec));
  must(hipGraphDestroy(graph));
}

TEST_F(Graph, replay_reads_new_data) {
  int* source = pinned_array<int>(2);
  int* result = pinned_array<int>(2);
  int* values = device_array<int>(2);
  hipStream_t stream = capturing_stream();
  must(hipMemcpyAsync(values, source, 8, hipMemcpyHostToDevice, stream));
  hipLaunchKernelGGL(add, dim3(1), dim3(2), 0, stream, values, 1);
  must(hipMemcpyAsync(result, values, 8, hipMemcpyDeviceToHost, stream));
  hipGraph_t graph = end(stream);
  hipGraphExec_t exec = instantiate(graph);
  // What is executable needs its graph no more.
  must(hipGraphDestroy(graph));
  for (const int first : {5, 70}) {
    source[0] = first;
    source[1] = first + 1;
    must(hipGraphLaunch(exec, stream));
    must(hipStreamSynchronize(stream));
    EXPECT_EQ(result[0], first + 1);
    EXPECT_EQ(result[1], first + 2);
  }
  must(hipGraphExecDestroy(exec));
}

TEST_F(Graph, every_kind_of_work_is_replayed) {
  unsigned char* bytes = device_array<unsigned char>(4);
  unsigned char* other = device_array<unsigned char>(4);
  static int calls = 0;
  calls = 0;
  hipStream_t stream = capturing_stream();
  must(hipMemsetAsync(bytes, 9, 4, stream));
  must(hipMemcpyAsync(other, bytes, 4, hipMemcpyDeviceToDevice, stream));
  must(hipLaunchHostFunc(
      stream, [](void* count) { ++*static_cast<int*>(count); }, &calls));
  hipGraph_t graph = end(stream);
  EXPECT_EQ(num_nodes(graph), 3u);
  hipGraphExec_t exec = instantiate(graph);
  must(hipGraphLaunch(exec, stream));
  must(hipGraphLaunch(exec, stream));
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(host_copy(other, 4), std::vector<unsigned char>(4, 9));
}

TEST_F(Graph, fork_and_join_through_events_is_right_under_every_seed) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    configure(seed);
    int* first = device_copy(std::vector<int>{1});
    int* second = device_copy(std::vector<int>{2});
    int* out = device_array<int>(1);
    hipStream_t side = make_stream();
    hipEvent_t fork = make_event();
    hipEvent_t join = make_event();
    hipStream_t stream = capturing_stream();
    hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, second, 10);
    must(hipEventRecord(fork, stream));
    must(hipStreamWaitEvent(side, fork, 0));
    EXPECT_EQ(status(side), hipStreamCaptureStatusActive);
    hipLaunchKernelGGL(times, dim3(1), dim3(1), 0, side, second, 3);
    must(hipEventRecord(join, side));
    hipLaunchKernelGGL(times, dim3(1), dim3(1), 0, stream, first, 5);
    must(hipStreamWaitEvent(stream, join, 0));
    hipLaunchKernelGGL(sum_of, dim3(1), dim3(1), 0, stream, first, second, out);
    hipGraph_t graph = end(stream);
    EXPECT_EQ(status(side), hipStreamCaptureStatusNone);
    hipGraphExec_t exec = instantiate(graph);
    must(hipGraphLaunch(exec, stream));
    must(hipStreamSynchronize(stream));
    EXPECT_EQ(host_copy(out, 1)[0], 5 + 36) << "seed " << seed;
  }
}

TEST_F(Graph, launched_in_a_stream_keeps_that_streams_order) {
  int* values = device_copy(std::vector<int>{1});
  hipStream_t stream = capturing_stream();
  hipLaunchKernelGGL(times, dim3(1), dim3(1), 0, stream, values, 10);
  hipGraphExec_t exec = instantiate(end(stream));
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, values, 1);
  must(hipGraphLaunch(exec, stream));
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, values, 3);
  EXPECT_EQ(host_copy(values, 1)[0], 23);
}

TEST_F(Graph, an_empty_capture_makes_an_empty_graph) {
  hipStream_t stream = capturing_stream();
  hipGraph_t graph = end(stream);
  EXPECT_EQ(num_nodes(graph), 0u);
  hipGraphExec_t exec = instantiate(graph);
  must(hipGraphLaunch(exec, stream));
  must(hipStreamSynchronize(stream));
}

TEST_F(Graph, update_gives_new_arguments_to_the_same_nodes) {
  int* first = device_copy(std::vector<int>{1, 1});
  int* second = device_copy(std::vector<int>{1, 1});
  const auto capture = [](int* values, int amount, std::uint32_t threads) {
    hipStream_t stream = capturing_stream();
    hipLaunchKernelGGL(add, dim3(1), dim3(threads), 0, stream, values, amount);
    return end(stream);
  };
  hipGraphExec_t exec = instantiate(capture(first, 5, 1));
  hipGraphExecUpdateResult result = hipGraphExecUpdateError;
  must(hipGraphExecUpdate(exec, capture(second, 7, 2), nullptr, &result));
  EXPECT_EQ(result, hipGraphExecUpdateSuccess);
  must(hipGraphLaunch(exec, nullptr));
  EXPECT_EQ(host_copy(first, 2), (std::vector<int>{1, 1}));
  EXPECT_EQ(host_copy(second, 2), (std::vector<int>{8, 8}));
}

TEST_F(Graph, update_with_other_nodes_is_refused_and_changes_nothing) {
  int* values = device_copy(std::vector<int>{1});
  const auto capture = [&](int kernels, int sets) {
    hipStream_t stream = capturing_stream();
    for (int i = 0; i < kernels; ++i) hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, values, 5);
    for (int i = 0; i < sets; ++i) must(hipMemsetAsync(values, 0, 4, stream));
    return end(stream);
  };
  hipGraphExec_t exec = instantiate(capture(1, 0));
  hipGraphExecUpdateResult result = hipGraphExecUpdateSuccess;
  EXPECT_EQ(hipGraphExecUpdate(exec, capture(2, 0), nullptr, &result), hipErrorGraphExecUpdateFailure);
  EXPECT_EQ(result, hipGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(hipGraphExecUpdate(exec, capture(0, 1), nullptr, &result), hipErrorGraphExecUpdateFailure);
  EXPECT_EQ(result, hipGraphExecUpdateErrorNodeTypeChanged);
  must(hipGraphLaunch(exec, nullptr));
  EXPECT_EQ(host_copy(values, 1)[0], 6);
}

TEST_F(Graph, nodes_are_listed_up_to_the_count_given) {
  int* values = device_array<int>(1);
  hipStream_t stream = capturing_stream();
  for (int i = 0; i < 3; ++i) must(hipMemsetAsync(values, i, 4, stream));
  hipGraph_t graph = end(stream);
  hipGraphNode_t nodes[4] = {};
  std::size_t count = 2;
  must(hipGraphGetNodes(graph, nodes, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_NE(nodes[1], nullptr);
  EXPECT_EQ(nodes[2], nullptr);
  count = 4;
  must(hipGraphGetNodes(graph, nodes, &count));
  EXPECT_EQ(count, 3u);
  EXPECT_NE(nodes[2], nullptr);
}

TEST_F(Graph, bad_arguments_are_refused) {
  hipGraph_t graph = nullptr;
  hipGraphExec_t exec = nullptr;
  hipStream_t stream = make_stream();
  std::size_t count = 0;
  EXPECT_NE(hipGraphInstantiate(&exec, nullptr, nullptr, nullptr, 0), hipSuccess);
  EXPECT_NE(hipGraphLaunch(nullptr, stream), hipSuccess);
  EXPECT_NE(hipGraphDestroy(nullptr), hipSuccess);
  EXPECT_NE(hipGraphExecDestroy(nullptr), hipSuccess);
  EXPECT_NE(hipGraphGetNodes(nullptr, nullptr, &count), hipSuccess);
  EXPECT_EQ(hipStreamEndCapture(stream, nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorIllegalState);
  EXPECT_EQ(exec, nullptr);
}

TEST_F(Graph, destroyed_twice_is_refused) {
  hipStream_t stream = capturing_stream();
  hipGraph_t graph = end(stream);
  hipGraphExec_t exec = instantiate(graph);
  must(hipGraphDestroy(graph));
  EXPECT_NE(hipGraphDestroy(graph), hipSuccess);
  must(hipGraphExecDestroy(exec));
  EXPECT_NE(hipGraphExecDestroy(exec), hipSuccess);
  EXPECT_NE(hipGraphLaunch(exec, stream), hipSuccess);
}

TEST_F(Graph, destroyed_while_its_launch_is_queued_still_runs) {
  int* values = device_copy(std::vector<int>{1});
  hipStream_t stream = capturing_stream();
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, values, 1);
  hipGraph_t graph = end(stream);
  hipGraphExec_t exec = instantiate(graph);
  must(hipGraphLaunch(exec, stream));
  must(hipGraphExecDestroy(exec));
  must(hipGraphDestroy(graph));
  must(hipStreamSynchronize(stream));
  EXPECT_EQ(host_copy(values, 1)[0], 2);
}

TEST_F(Graph, freed_memory_in_a_graph_that_waits_to_run_is_reported) {
  follow_rules(hipsim::Rules::portable);
  int* values = device_copy(std::vector<int>{1});
  hipStream_t stream = capturing_stream();
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, values, 1);
  hipGraphExec_t exec = instantiate(end(stream));
  must(hipGraphLaunch(exec, stream));
  static_cast<void>(hipFree(values));
  EXPECT_FALSE(take_report(hipsim::Report::free_while_queued).empty());
}

// ---- calls that capture forbids -------------------------------------------------------------------------------------

TEST_F(Capture, synchronising_the_stream_is_refused_and_ends_it) {
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorStreamCaptureUnsupported);
  EXPECT_FALSE(hipsim::last_message().empty());
  expect_invalidated(stream);
}

TEST_F(Capture, asking_the_stream_is_refused) {
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipStreamQuery(stream), hipErrorStreamCaptureUnsupported);
  expect_invalidated(stream);
}

TEST_F(Capture, synchronising_the_device_is_refused) {
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorStreamCaptureUnsupported);
  expect_invalidated(stream);
}

TEST_F(Capture, allocating_and_freeing_are_refused) {
  int* device = device_array<int>(1);
  void* made = nullptr;
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipMalloc(&made, 4), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(made, nullptr);
  expect_invalidated(stream);
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT_EQ(hipFree(device), hipErrorStreamCaptureUnsupported);
  expect_invalidated(stream);
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT_EQ(hipHostMalloc(&made, 4), hipErrorStreamCaptureUnsupported);
  expect_invalidated(stream);
  EXPECT_EQ(hipsim::counters().live_allocations, 1);
}

TEST_F(Capture, allocating_is_allowed_in_relaxed_mode) {
  hipStream_t stream = capturing_stream(hipStreamCaptureModeRelaxed);
  int* device = device_array<int>(1);
  must(hipMemsetAsync(device, 0, 4, stream));
  hipGraph_t graph = nullptr;
  must(hipStreamEndCapture(stream, &graph));
  EXPECT_NE(graph, nullptr);
}

TEST_F(Capture, a_blocking_copy_or_set_is_refused) {
  int host = 0;
  int* device = device_copy(std::vector<int>{3});
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipMemcpy(&host, device, 4, hipMemcpyDeviceToHost), hipErrorStreamCaptureImplicit);
  EXPECT_EQ(host, 0);
  expect_invalidated(stream);
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT_EQ(hipMemset(device, 0, 4), hipErrorStreamCaptureImplicit);
  expect_invalidated(stream);
  EXPECT_EQ(host_copy(device, 1)[0], 3);
}

TEST_F(Capture, work_on_the_null_stream_is_refused) {
  int* device = device_copy(std::vector<int>{3});
  hipStream_t stream = capturing_stream();
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, nullptr, device, 1);
  EXPECT_EQ(hipGetLastError(), hipErrorStreamCaptureImplicit);
  expect_invalidated(stream);
  EXPECT_EQ(host_copy(device, 1)[0], 3);
}

TEST_F(Capture, the_null_stream_cannot_be_captured) {
  EXPECT_EQ(hipStreamBeginCapture(nullptr, hipStreamCaptureModeGlobal), hipErrorStreamCaptureUnsupported);
}

TEST_F(Capture, begun_twice_is_refused) {
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal), hipErrorIllegalState);
}

TEST_F(Capture, an_event_recorded_in_it_cannot_be_waited_for_by_the_host) {
  hipEvent_t event = make_event();
  hipStream_t stream = capturing_stream();
  must(hipEventRecord(event, stream));
  EXPECT_EQ(hipEventQuery(event), hipErrorCapturedEvent);
  hipGraph_t graph = nullptr;
  static_cast<void>(hipStreamEndCapture(stream, &graph));
  EXPECT_EQ(hipEventSynchronize(event), hipErrorCapturedEvent);
}

TEST_F(Capture, an_event_from_outside_it_cannot_be_waited_for) {
  hipEvent_t event = make_event();
  must(hipEventRecord(event, make_stream()));
  hipStream_t stream = capturing_stream();
  EXPECT_EQ(hipStreamWaitEvent(stream, event, 0), hipErrorStreamCaptureIsolation);
  expect_invalidated(stream);
}

TEST_F(Capture, two_of_them_cannot_be_joined) {
  hipEvent_t event = make_event();
  hipStream_t first = capturing_stream();
  hipStream_t second = capturing_stream();
  must(hipEventRecord(event, first));
  EXPECT_EQ(hipStreamWaitEvent(second, event, 0), hipErrorStreamCaptureMerge);
}

TEST_F(Capture, a_fork_that_is_not_joined_is_refused_at_its_end) {
  int* device = device_array<int>(1);
  hipStream_t side = make_stream();
  hipEvent_t fork = make_event();
  hipStream_t stream = capturing_stream();
  must(hipEventRecord(fork, stream));
  must(hipStreamWaitEvent(side, fork, 0));
  must(hipMemsetAsync(device, 0, 4, side));
  hipGraph_t graph = nullptr;
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(Capture, ended_on_a_stream_that_joined_it_is_refused) {
  hipStream_t side = make_stream();
  hipEvent_t fork = make_event();
  hipStream_t stream = capturing_stream();
  must(hipEventRecord(fork, stream));
  must(hipStreamWaitEvent(side, fork, 0));
  hipGraph_t graph = nullptr;
  EXPECT_EQ(hipStreamEndCapture(side, &graph), hipErrorStreamCaptureUnmatched);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(Capture, a_stream_destroyed_in_it_breaks_it_off) {
  hipStream_t side = make_stream();
  hipEvent_t fork = make_event();
  hipStream_t stream = capturing_stream();
  must(hipEventRecord(fork, stream));
  must(hipStreamWaitEvent(side, fork, 0));
  static_cast<void>(hipStreamDestroy(side));
  hipGraph_t graph = nullptr;
  EXPECT_NE(hipStreamEndCapture(stream, &graph), hipSuccess);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(Capture, a_broken_one_refuses_more_work_and_runs_none_of_it) {
  int* device = device_copy(std::vector<int>{3});
  hipStream_t stream = capturing_stream();
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, device, 1);
  EXPECT_NE(hipStreamSynchronize(stream), hipSuccess);
  static_cast<void>(hipGetLastError());
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, stream, device, 1);
  EXPECT_EQ(hipGetLastError(), hipErrorStreamCaptureInvalidated);
  expect_invalidated(stream);
  EXPECT_EQ(host_copy(device, 1)[0], 3);
}

TEST_F(Capture, another_stream_works_on_meanwhile) {
  int* device = device_copy(std::vector<int>{3});
  hipStream_t other = make_stream(hipStreamNonBlocking);
  hipStream_t stream = capturing_stream(hipStreamCaptureModeRelaxed);
  hipLaunchKernelGGL(add, dim3(1), dim3(1), 0, other, device, 1);
  must(hipStreamSynchronize(other));
  hipGraph_t graph = nullptr;
  must(hipStreamEndCapture(stream, &graph));
  EXPECT_EQ(host_copy(device, 1)[0], 4);
}

/// Its streams can only be destroyed: rules_test.
TEST_F(Capture, that_was_not_joined_ends_with_its_first_stream) {
  hipStream_t origin = make_stream(hipStreamNonBlocking);
  hipStream_t other = make_stream(hipStreamNonBlocking);
  hipStream_t late = make_stream(hipStreamNonBlocking);
  hipEvent_t event = make_event();
  int* const device = device_array<int>(1);
  must(hipStreamBeginCapture(origin, hipStreamCaptureModeGlobal));
  must(hipEventRecord(event, origin));
  must(hipStreamWaitEvent(other, event));
  must(hipMemsetAsync(device, 0, 4, other));
  hipGraph_t graph = nullptr;
  EXPECT_EQ(hipStreamEndCapture(origin, &graph), hipErrorStreamCaptureUnjoined);
  EXPECT_EQ(hipStreamWaitEvent(late, event), hipErrorStreamCaptureInvalidated);
  must(hipStreamDestroy(origin));
  EXPECT_EQ(status(other), hipStreamCaptureStatusNone);
  must(hipDeviceSynchronize());
  for (hipStream_t stream : {other, late}) must(hipStreamDestroy(stream));
  must(hipEventDestroy(event));
  must(hipFree(device));
}

TEST_F(Capture, ends_with_the_stream_it_began_in) {
  hipStream_t origin = make_stream(hipStreamNonBlocking);
  hipStream_t other = make_stream(hipStreamNonBlocking);
  hipEvent_t event = make_event();
  must(hipStreamBeginCapture(origin, hipStreamCaptureModeGlobal));
  must(hipEventRecord(event, origin));
  must(hipStreamWaitEvent(other, event));
  must(hipStreamDestroy(origin));
  must(hipDeviceSynchronize());
  must(hipStreamDestroy(other));
  must(hipEventDestroy(event));
}

TEST_F(Capture, does_not_survive_questions_about_events_and_the_null_stream) {
  hipEvent_t event = make_event();
  must(hipEventRecord(event, nullptr));
  hipStream_t stream = make_stream();
  hipGraph_t graph = nullptr;
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT_EQ(hipEventQuery(event), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureInvalidated);
  must(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  EXPECT_EQ(hipStreamQuery(nullptr), hipErrorStreamCaptureImplicit);
  EXPECT_EQ(hipStreamEndCapture(stream, &graph), hipErrorStreamCaptureInvalidated);
  must(hipStreamDestroy(stream));
  must(hipEventDestroy(event));
}

}  // namespace
