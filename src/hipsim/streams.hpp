#pragma once

#include "queue.hpp"

#include <hip/hip_runtime_api.h>

#include <memory>
#include <unordered_set>
#include <vector>

struct hipGraphNode {
  std::shared_ptr<const hipsim::Payload> payload;
  std::vector<std::size_t> waits_for;  ///< indices of earlier nodes
  hipsim::Place place;
};

struct ihipGraph {
  std::vector<std::unique_ptr<hipGraphNode>> nodes;
  hipsim::Place place;
};

struct hipGraphExec {
  std::vector<hipGraphNode> nodes;
  hipsim::OpPtr last;  ///< of the launch before: launches of one executable graph follow each other
  hipsim::Place place;
};

namespace hipsim {

/// A capture that is going on: the streams in it write one graph.
struct Capture {
  std::unique_ptr<ihipGraph> graph = std::make_unique<ihipGraph>();
  hipStream_t origin = nullptr;
  hipStreamCaptureMode mode = hipStreamCaptureModeGlobal;
  bool is_valid = true;
  bool is_over = false;  ///< ended, by hipStreamEndCapture or with its first stream
  /// hipStreamEndCapture found work in it that was not joined: its streams stay in it until the first one is destroyed.
  bool is_unjoined = false;
  std::unordered_set<hipStream_t> streams;
};

/// Takes every stream out of the capture.
void end_capture(const std::shared_ptr<Capture>& capture);

}  // namespace hipsim

struct ihipStream_t {
  bool is_blocking = true;  ///< waits for the null stream, and it for this one
  hipsim::OpPtr tail;       ///< the last operation queued
  std::shared_ptr<hipsim::StreamStrand> strand = std::make_shared<hipsim::StreamStrand>();
  std::shared_ptr<hipsim::Capture> capture;
  std::vector<std::size_t> capture_tail;  ///< nodes the next one waits for
  hipsim::Place place;
};

struct ihipEvent_t {
  hipsim::OpPtr op;                          ///< null: never recorded
  std::shared_ptr<hipsim::Capture> capture;  ///< recorded in a captured stream
  std::vector<std::size_t> capture_nodes;
  bool has_time = true;
  hipsim::Place place;
};
