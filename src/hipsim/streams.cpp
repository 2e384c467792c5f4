#include "streams.hpp"

#include "runtime.hpp"

#include <algorithm>

namespace hipsim {
namespace {

ihipStream_t& null_stream() {
  auto& stream = runtime().null_stream;
  if (!stream) stream = std::make_unique<ihipStream_t>();
  return *stream;
}

/// The operations that one queued on `stream` now waits for, in the order they were queued. For ThreadSanitizer those
/// that are done count too: what has run is ordered before what is queued behind it.
std::vector<OpPtr> what_stands_before(const ihipStream_t& stream) {
  std::vector<OpPtr> before;
  const auto add = [&](const OpPtr& op) {
    if (op && (!op->is_done || watch::has_thread_sanitizer())) before.push_back(op);
  };
  add(stream.tail);
  const ihipStream_t& null = null_stream();
  if (&stream == &null) {
    for (const auto& other : runtime().streams)
      if (other->is_blocking) add(other->tail);
    std::sort(before.begin(), before.end(), [](const OpPtr& a, const OpPtr& b) { return a->number < b->number; });
  } else if (stream.is_blocking) {
    add(null.tail);
  }
  return before;
}

hipError_t record_node(ihipStream_t& stream, const std::shared_ptr<const Payload>& payload, const Place& place) {
  auto& nodes = stream.capture->graph->nodes;
  nodes.push_back(std::make_unique<hipGraphNode>(hipGraphNode{payload, stream.capture_tail, place}));
  stream.capture_tail = {nodes.size() - 1};
  return hipSuccess;
}

bool has_blocking_stream(const Capture& capture) {
  return std::any_of(capture.streams.begin(), capture.streams.end(), [](hipStream_t stream) {
    const ihipStream_t* found = find_stream(stream);
    return found != nullptr && found->is_blocking;
  });
}

bool is_endangered(const Capture& capture, Danger danger) {
  const bool is_relaxed = capture.mode == hipStreamCaptureModeRelaxed;
  switch (danger) {
    case Danger::unsafe_call:
      return !is_relaxed;
    case Danger::null_stream_work:
      // On an MI300X a relaxed capture does not mind; CUDA's does.
      return has_blocking_stream(capture) && (!is_relaxed || is_portable());
    case Danger::null_stream_wait:
      return has_blocking_stream(capture);
    case Danger::blocking_call:
      return !is_relaxed || has_blocking_stream(capture);
  }
  return true;
}

hipError_t unknown_stream(ApiCall& call) {
  return call.fail(hipErrorInvalidHandle, "the stream is none that is there");
}
hipError_t unknown_event(ApiCall& call) { return call.fail(hipErrorInvalidHandle, "the event is none that is there"); }

ihipEvent_t* find_event(hipEvent_t event) { return runtime().events.find(event); }

/// Nothing more becomes part of a capture that was lost, or has ended with work that was not joined.
hipError_t refuse_lost(ApiCall& call, const Capture& capture) {
  if (capture.is_unjoined)
    return call.fail(hipErrorStreamCaptureInvalidated,
                     "the capture ended with work that was not joined: its streams can only be destroyed");
  if (capture.is_valid) return hipSuccess;
  return call.fail(hipErrorStreamCaptureInvalidated, "the capture was lost in an earlier call");
}

/// Waiting for a stream that is being captured would wait for what never runs.
hipError_t refuse_capturing(ApiCall& call, ihipStream_t& stream) {
  if (!stream.capture) return hipSuccess;
  stream.capture->is_valid = false;
  return call.fail(hipErrorStreamCaptureUnsupported, "the stream is being captured; the capture is lost");
}

/// The null stream waits for the blocking ones: not while one of them is being captured.
hipError_t refuse_null_stream(ApiCall& call, hipStream_t stream, Danger danger) {
  if (stream != nullptr || !invalidate_captures(danger)) return hipSuccess;
  return call.fail(hipErrorStreamCaptureImplicit, "the null stream waits for streams that are being captured");
}

/// To look at an event is not safe during a capture, and an event recorded in one has nothing to show.
hipError_t refuse_look(ApiCall& call, const ihipEvent_t& event) {
  if (event.capture) {
    event.capture->is_valid = false;
    return call.fail(hipErrorCapturedEvent, "the event was recorded in a capture");
  }
  if (!invalidate_captures(Danger::unsafe_call)) return hipSuccess;
  return call.fail(hipErrorStreamCaptureUnsupported, "called while a stream is captured; the capture is lost");
}

void wait_for(const OpPtr& op) {
  runtime().queue.run_until(op);
  if (op) watch::acquire(&op->done);
}

hipError_t poll(ApiCall& call, const OpPtr& op) {
  if (!op || op->is_done) {
    if (op) watch::acquire(&op->done);
    return hipSuccess;
  }
  // Whoever polls waits: without this a lazy queue would never get there.
  runtime().queue.run_one_towards(op);
  static_cast<void>(call.fail(hipErrorNotReady, "not ready yet"));
  return hipErrorNotReady;
}

}  // namespace

ihipStream_t* find_stream(hipStream_t stream) {
  if (stream == nullptr) return &null_stream();
  return runtime().streams.find(stream);
}

void end_capture(const std::shared_ptr<Capture>& capture) {
  capture->is_over = true;
  for (const auto& stream : runtime().streams) {
    if (stream->capture != capture) continue;
    stream->capture.reset();
    stream->capture_tail.clear();
  }
}

void end_captures() {
  for (const auto& stream : runtime().streams)
    if (const std::shared_ptr<Capture> capture = stream->capture) end_capture(capture);
}

bool invalidate_captures(Danger danger) {
  bool any = false;
  for (const auto& stream : runtime().streams) {
    if (!stream->capture || !is_endangered(*stream->capture, danger)) continue;
    stream->capture->is_valid = false;
    any = true;
  }
  return any;
}

hipError_t enqueue(ApiCall& call, hipStream_t handle, std::shared_ptr<const Payload> payload, const Place& place,
                   OpPtr* queued) {
  ihipStream_t* const stream = find_stream(handle);
  if (stream == nullptr) return unknown_stream(call);
  if (stream->capture) {
    if (refuse_lost(call, *stream->capture) != hipSuccess) return call.error();
    return record_node(*stream, payload, place);
  }
  if (refuse_null_stream(call, handle, Danger::null_stream_work) != hipSuccess) return call.error();
  const auto op = std::make_shared<Op>();
  op->payload = std::move(payload);
  op->waits_for = what_stands_before(*stream);
  op->strand = stream->strand;
  op->place = place;
  Runtime& sim = runtime();
  sim.queue.add(op);
  stream->tail = op;
  if (queued != nullptr) *queued = op;
  if (sim.config.mode == Mode::eager) sim.queue.run_until(op);
  return hipSuccess;
}

}  // namespace hipsim

using hipsim::ApiCall;
using hipsim::find_stream;
using hipsim::OpPtr;
using hipsim::Payload;
using hipsim::Place;
using hipsim::runtime;

// ---- streams --------------------------------------------------------------------------------------------------------

hipError_t hipStreamCreate(hipStream_t* stream, Place place) {
  ApiCall call{"hipStreamCreate", place};
  if (call.refused()) return call.error();
  if (stream == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  auto made = std::make_unique<ihipStream_t>();
  made->place = place;
  *stream = runtime().streams.add(std::move(made));
  return hipSuccess;
}

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags, Place place) {
  ApiCall call{"hipStreamCreateWithFlags", place};
  if (call.refused()) return call.error();
  if (stream == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  if (flags != hipStreamDefault && flags != hipStreamNonBlocking)
    return call.fail(hipErrorInvalidValue, "unknown flags " + std::to_string(flags));
  auto made = std::make_unique<ihipStream_t>();
  made->is_blocking = flags == hipStreamDefault;
  made->place = place;
  *stream = runtime().streams.add(std::move(made));
  return hipSuccess;
}

hipError_t hipStreamDestroy(hipStream_t stream, Place place) {
  ApiCall call{"hipStreamDestroy", place};
  if (call.refused()) return call.error();
  const auto* found = stream == nullptr ? nullptr : find_stream(stream);
  if (found == nullptr) return hipsim::unknown_stream(call);
  if (const std::shared_ptr<hipsim::Capture> capture = found->capture) {
    capture->is_valid = false;
    capture->streams.erase(stream);
    if (capture->origin == stream) hipsim::end_capture(capture);
  }
  // What is queued still runs: the operations themselves know what they wait for.
  runtime().streams.erase(stream);
  return hipSuccess;
}

hipError_t hipStreamSynchronize(hipStream_t stream, Place place) {
  ApiCall call{"hipStreamSynchronize", place};
  if (call.refused()) return call.error();
  ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return hipsim::unknown_stream(call);
  if (hipsim::refuse_capturing(call, *found) != hipSuccess) return call.error();
  if (hipsim::refuse_null_stream(call, stream, hipsim::Danger::null_stream_wait) != hipSuccess) return call.error();
  ++runtime().counted.synchronisations;
  // The null stream waits for the blocking ones, too.
  for (const OpPtr& op : hipsim::what_stands_before(*found)) hipsim::wait_for(op);
  return call.finish();
}

hipError_t hipStreamQuery(hipStream_t stream, Place place) {
  ApiCall call{"hipStreamQuery", place};
  if (call.refused()) return call.error();
  ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return hipsim::unknown_stream(call);
  if (hipsim::refuse_capturing(call, *found) != hipSuccess) return call.error();
  if (hipsim::refuse_null_stream(call, stream, hipsim::Danger::null_stream_wait) != hipSuccess) return call.error();
  for (const OpPtr& op : hipsim::what_stands_before(*found))
    if (hipsim::poll(call, op) != hipSuccess) return call.error();
  return hipSuccess;
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags, Place place) {
  ApiCall call{"hipStreamWaitEvent", place};
  if (call.refused()) return call.error();
  ihipStream_t* const found = find_stream(stream);
  if (found == nullptr) return hipsim::unknown_stream(call);
  const ihipEvent_t* const waited = hipsim::find_event(event);
  if (waited == nullptr) return hipsim::unknown_event(call);
  if (flags != 0) return call.fail(hipErrorInvalidValue, "flags have to be 0");
  if (waited->capture) {
    if (!waited->capture->is_valid || waited->capture->is_over || waited->capture->is_unjoined)
      return call.fail(hipErrorStreamCaptureInvalidated, "the capture in which the event was recorded is over");
    if (found->capture && found->capture != waited->capture) {
      found->capture->is_valid = waited->capture->is_valid = false;
      return call.fail(hipErrorStreamCaptureMerge, "the event belongs to another capture");
    }
    if (stream == nullptr)
      return call.fail(hipErrorStreamCaptureImplicit, "the null stream cannot become part of a capture");
    found->capture = waited->capture;
    found->capture->streams.insert(stream);
    for (const std::size_t node : waited->capture_nodes)
      if (std::find(found->capture_tail.begin(), found->capture_tail.end(), node) == found->capture_tail.end())
        found->capture_tail.push_back(node);
    return hipSuccess;
  }
  if (found->capture) {
    found->capture->is_valid = false;
    return call.fail(hipErrorStreamCaptureIsolation, "the event was recorded outside of the capture");
  }
  if (!waited->op) return hipSuccess;
  if (hipsim::refuse_null_stream(call, stream, hipsim::Danger::null_stream_work) != hipSuccess) return call.error();
  // Behind the event as well as behind the stream's own work.
  const auto joined = std::make_shared<hipsim::Op>();
  joined->payload = std::make_shared<const Payload>(hipsim::Marker{});
  joined->waits_for = hipsim::what_stands_before(*found);
  joined->waits_for.push_back(waited->op);
  joined->strand = found->strand;
  joined->place = place;
  runtime().queue.add(joined);
  found->tail = joined;
  if (runtime().config.mode == hipsim::Mode::eager) runtime().queue.run_until(joined);
  return hipSuccess;
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data, Place place) {
  ApiCall call{"hipLaunchHostFunc", place};
  if (call.refused()) return call.error();
  if (function == nullptr) return call.fail(hipErrorInvalidValue, "the function is null");
  return hipsim::enqueue(call, stream, std::make_shared<const Payload>(hipsim::HostFunction{function, data}), place);
}

hipError_t hipDeviceSynchronize(Place place) {
  ApiCall call{"hipDeviceSynchronize", place, ApiCall::not_while_capturing};
  if (call.refused()) return call.error();
  ++runtime().counted.synchronisations;
  runtime().queue.run_all();
  runtime().queue.wait_for_all();
  return call.finish();
}

// ---- events ---------------------------------------------------------------------------------------------------------

namespace {

hipError_t create_event(ApiCall& call, hipEvent_t* event, unsigned int flags, const Place& place) {
  if (call.refused()) return call.error();
  if (event == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  if ((flags & ~(hipEventBlockingSync | hipEventDisableTiming)) != 0)
    return call.fail(hipErrorInvalidValue, "unknown flags " + std::to_string(flags));
  auto made = std::make_unique<ihipEvent_t>();
  made->has_time = (flags & hipEventDisableTiming) == 0;
  made->place = place;
  *event = runtime().events.add(std::move(made));
  return hipSuccess;
}

}  // namespace

hipError_t hipEventCreate(hipEvent_t* event, Place place) {
  ApiCall call{"hipEventCreate", place};
  return create_event(call, event, hipEventDefault, place);
}

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags, Place place) {
  ApiCall call{"hipEventCreateWithFlags", place};
  return create_event(call, event, flags, place);
}

hipError_t hipEventDestroy(hipEvent_t event, Place place) {
  ApiCall call{"hipEventDestroy", place};
  if (call.refused()) return call.error();
  if (hipsim::find_event(event) == nullptr) return hipsim::unknown_event(call);
  runtime().events.erase(event);
  return hipSuccess;
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream, Place place) {
  ApiCall call{"hipEventRecord", place};
  if (call.refused()) return call.error();
  ihipEvent_t* const found = hipsim::find_event(event);
  if (found == nullptr) return hipsim::unknown_event(call);
  ihipStream_t* const recorded = find_stream(stream);
  if (recorded == nullptr) return hipsim::unknown_stream(call);
  if (recorded->capture) {
    if (hipsim::refuse_lost(call, *recorded->capture) != hipSuccess) return call.error();
    found->capture = recorded->capture;
    found->capture_nodes = recorded->capture_tail;
    found->op.reset();
    return hipSuccess;
  }
  OpPtr queued;
  if (hipsim::enqueue(call, stream, std::make_shared<const Payload>(hipsim::Marker{}), place, &queued) != hipSuccess)
    return call.error();
  found->op = queued;
  found->capture.reset();
  return hipSuccess;
}

hipError_t hipEventSynchronize(hipEvent_t event, Place place) {
  ApiCall call{"hipEventSynchronize", place};
  if (call.refused()) return call.error();
  const ihipEvent_t* const found = hipsim::find_event(event);
  if (found == nullptr) return hipsim::unknown_event(call);
  if (hipsim::refuse_look(call, *found) != hipSuccess) return call.error();
  ++runtime().counted.synchronisations;
  hipsim::wait_for(found->op);
  return call.finish();
}

hipError_t hipEventQuery(hipEvent_t event, Place place) {
  ApiCall call{"hipEventQuery", place};
  if (call.refused()) return call.error();
  const ihipEvent_t* const found = hipsim::find_event(event);
  if (found == nullptr) return hipsim::unknown_event(call);
  if (hipsim::refuse_look(call, *found) != hipSuccess) return call.error();
  return hipsim::poll(call, found->op);
}

hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop, Place place) {
  ApiCall call{"hipEventElapsedTime", place};
  if (call.refused()) return call.error();
  const ihipEvent_t* const from = hipsim::find_event(start);
  const ihipEvent_t* const to = hipsim::find_event(stop);
  if (from == nullptr || to == nullptr) return hipsim::unknown_event(call);
  if (milliseconds == nullptr) return call.fail(hipErrorInvalidValue, "the pointer to set is null");
  if (!from->has_time || !to->has_time || !from->op || !to->op)
    return call.fail(hipErrorInvalidHandle, "an event has no time: never recorded, or made without");
  if (!from->op->is_done || !to->op->is_done) return call.fail(hipErrorNotReady, "not ready yet");
  *milliseconds = static_cast<float>(to->op->done_at - from->op->done_at) / 1000;
  return hipSuccess;
}
