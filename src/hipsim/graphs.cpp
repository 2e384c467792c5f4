#include "runtime.hpp"
#include "streams.hpp"

#include <algorithm>
#include <cstdio>

namespace hipsim {
namespace {

ihipGraph* find_graph(hipGraph_t graph) { return runtime().graphs.find(graph); }

hipGraphExec* find_exec(hipGraphExec_t exec) { return runtime().execs.find(exec); }

hipError_t unknown_graph(ApiCall& call) { return call.fail(hipErrorInvalidHandle, "the graph is none that is there"); }

/// Nodes that one of `tails` is, or comes behind.
std::vector<bool> nodes_before(const ihipGraph& graph, const std::vector<std::size_t>& tails) {
  std::vector<bool> before(graph.nodes.size(), false);
  for (const std::size_t node : tails) before[node] = true;
  for (std::size_t i = graph.nodes.size(); i-- > 0;)
    if (before[i])
      for (const std::size_t node : graph.nodes[i]->waits_for) before[node] = true;
  return before;
}

}  // namespace
}  // namespace hipsim

using hipsim::ApiCall;
using hipsim::find_stream;
using hipsim::OpPtr;
using hipsim::Payload;
using hipsim::Place;
using hipsim::runtime;

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode, Place place) {
  ApiCall call{"hipStreamBeginCapture", place};
  if (call.refused()) return call.error();
  if (stream == nullptr) return call.fail(hipErrorStreamCaptureUnsupported, "the null stream cannot be captured");
  ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return call.fail(hipErrorInvalidHandle, "the stream is none that is there");
  if (mode != hipStreamCaptureModeGlobal && mode != hipStreamCaptureModeThreadLocal &&
      mode != hipStreamCaptureModeRelaxed)
    return call.fail(hipErrorInvalidValue, "unknown capture mode");
  if (found->capture) return call.fail(hipErrorIllegalState, "the stream is being captured already");
  found->capture = std::make_shared<hipsim::Capture>();
  found->capture->origin = stream;
  found->capture->mode = mode;
  found->capture->streams.insert(stream);
  found->capture->graph->place = place;
  found->capture_tail.clear();
  return hipSuccess;
}

hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph, Place place) {
  ApiCall call{"hipStreamEndCapture", place};
  if (call.refused()) return call.error();
  if (graph == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  *graph = nullptr;
  ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return call.fail(hipErrorInvalidHandle, "the stream is none that is there");
  if (!found->capture) return call.fail(hipErrorIllegalState, "the stream is not being captured");
  const std::shared_ptr<hipsim::Capture> capture = found->capture;
  if (capture->origin != stream) {
    capture->is_valid = false;
    return call.fail(hipErrorStreamCaptureUnmatched, "the capture began in another stream");
  }
  if (capture->is_valid && !capture->is_unjoined) {
    const std::vector<bool> joined = hipsim::nodes_before(*capture->graph, found->capture_tail);
    capture->is_unjoined = std::find(joined.begin(), joined.end(), false) != joined.end();
  }
  // A GPU leaves its streams as they are, in a capture that never ends.
  if (capture->is_unjoined)
    return call.fail(hipErrorStreamCaptureUnjoined,
                     "work in another stream was not joined by an event: the streams can only be destroyed");
  hipsim::end_capture(capture);
  if (!capture->is_valid) return call.fail(hipErrorStreamCaptureInvalidated, "the capture was lost in an earlier call");
  *graph = runtime().graphs.add(std::move(capture->graph));
  return hipSuccess;
}

hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status, Place place) {
  ApiCall call{"hipStreamIsCapturing", place};
  if (call.refused()) return call.error();
  if (status == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  const ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return call.fail(hipErrorInvalidHandle, "the stream is none that is there");
  *status = !found->capture            ? hipStreamCaptureStatusNone
            : found->capture->is_valid ? hipStreamCaptureStatusActive
                                       : hipStreamCaptureStatusInvalidated;
  return hipSuccess;
}

hipError_t hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t* error_node, char* log,
                               std::size_t log_size, Place place) {
  ApiCall call{"hipGraphInstantiate", place};
  if (call.refused()) return call.error();
  if (exec == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  const ihipGraph* const found = hipsim::find_graph(graph);
  if (found == nullptr) return hipsim::unknown_graph(call);
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_size > 0) *log = '\0';
  auto made = std::make_unique<hipGraphExec>();
  for (const auto& node : found->nodes) made->nodes.push_back(*node);
  made->place = place;
  *exec = runtime().execs.add(std::move(made));
  return hipSuccess;
}

hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream, Place place) {
  ApiCall call{"hipGraphLaunch", place};
  if (call.refused()) return call.error();
  hipGraphExec* const found = hipsim::find_exec(exec);
  if (found == nullptr) return call.fail(hipErrorInvalidHandle, "the executable graph is none that is there");
  ihipStream_t* const on = find_stream(stream);
  if (on == nullptr) return call.fail(hipErrorInvalidHandle, "the stream is none that is there");
  if (on->capture) {
    on->capture->is_valid = false;
    return call.fail(hipErrorStreamCaptureUnsupported,
                     "a graph cannot be launched into a capture; the capture is lost");
  }
  // The first and the last operation stand in the stream; the nodes in between order each other.
  hipsim::Queue& queue = runtime().queue;
  OpPtr first;
  const auto marker = std::make_shared<const Payload>(hipsim::Marker{});
  if (hipsim::enqueue(call, stream, marker, place, &first) != hipSuccess) return call.error();
  if (found->last && (!found->last->is_done || hipsim::watch::has_thread_sanitizer()))
    first->waits_for.push_back(found->last);
  std::vector<OpPtr> ops;
  for (const hipGraphNode& node : found->nodes) {
    auto op = std::make_shared<hipsim::Op>();
    op->payload = node.payload;
    op->waits_for.push_back(first);
    for (const std::size_t before : node.waits_for) op->waits_for.push_back(ops[before]);
    // Nodes that do not wait for each other are strands of their own.
    op->strand = std::make_shared<hipsim::StreamStrand>();
    op->place = node.place;
    queue.add(op);
    ops.push_back(std::move(op));
  }
  auto last = std::make_shared<hipsim::Op>();
  last->payload = marker;
  last->waits_for = ops;
  last->waits_for.push_back(first);
  last->strand = on->strand;
  last->place = place;
  queue.add(last);
  on->tail = found->last = last;
  if (runtime().config.mode == hipsim::Mode::eager) queue.run_until(last);
  return hipSuccess;
}

hipError_t hipGraphExecUpdate(hipGraphExec_t exec, hipGraph_t graph, hipGraphNode_t* error_node,
                              hipGraphExecUpdateResult* result, Place place) {
  ApiCall call{"hipGraphExecUpdate", place};
  const auto answer = [&](hipGraphExecUpdateResult what, hipGraphNode* node) {
    if (result != nullptr) *result = what;
    if (error_node != nullptr) *error_node = node;
  };
  // Also when it is made to fail: nobody shall read what the last update left there.
  answer(hipGraphExecUpdateError, nullptr);
  if (call.refused()) return call.error();
  hipGraphExec* const old = hipsim::find_exec(exec);
  const ihipGraph* const found = hipsim::find_graph(graph);
  if (old == nullptr || found == nullptr) return hipsim::unknown_graph(call);
  answer(hipGraphExecUpdateErrorTopologyChanged, nullptr);
  if (found->nodes.size() != old->nodes.size())
    return call.fail(hipErrorGraphExecUpdateFailure, "the graph has " + std::to_string(found->nodes.size()) +
                                                         " nodes, the executable one " +
                                                         std::to_string(old->nodes.size()));
  for (std::size_t i = 0; i < old->nodes.size(); ++i) {
    hipGraphNode& node = *found->nodes[i];
    const bool same_place = node.waits_for == old->nodes[i].waits_for;
    if (same_place && node.payload->index() == old->nodes[i].payload->index()) continue;
    answer(same_place ? hipGraphExecUpdateErrorNodeTypeChanged : hipGraphExecUpdateErrorTopologyChanged, &node);
    return call.fail(hipErrorGraphExecUpdateFailure, "node " + std::to_string(i) + " is another");
  }
  for (std::size_t i = 0; i < old->nodes.size(); ++i) old->nodes[i] = *found->nodes[i];
  answer(hipGraphExecUpdateSuccess, nullptr);
  return hipSuccess;
}

hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t* count, Place place) {
  ApiCall call{"hipGraphGetNodes", place};
  if (call.refused()) return call.error();
  const ihipGraph* const found = hipsim::find_graph(graph);
  if (found == nullptr) return hipsim::unknown_graph(call);
  if (count == nullptr) return call.fail(hipErrorInvalidValue, "the count is null");
  const std::size_t num_nodes = found->nodes.size();
  if (nodes != nullptr)
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < num_nodes ? found->nodes[i].get() : nullptr;
  *count = nodes == nullptr ? num_nodes : std::min(*count, num_nodes);
  return hipSuccess;
}

hipError_t hipGraphDestroy(hipGraph_t graph, Place place) {
  ApiCall call{"hipGraphDestroy", place};
  if (call.refused()) return call.error();
  return runtime().graphs.erase(graph) ? hipSuccess : hipsim::unknown_graph(call);
}

hipError_t hipGraphExecDestroy(hipGraphExec_t exec, Place place) {
  ApiCall call{"hipGraphExecDestroy", place};
  if (call.refused()) return call.error();
  // A launch that is queued keeps what it needs.
  return runtime().execs.erase(exec) ? hipSuccess : hipsim::unknown_graph(call);
}
