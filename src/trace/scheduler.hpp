#pragma once

#include "attn/batch.hpp"
#include "batchtext/batchtext.hpp"
#include "trace/request_trace.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trace {

/// How the server is set up. Names are vLLM's. Defaults are those of its API server on a GPU with 70 GiB or more, an
/// MI300X for one (its `LLM` class takes 16,384 tokens there; on smaller GPUs the server takes 2,048 and 256 requests).
struct SchedulerOptions {
  std::int32_t max_num_batched_tokens = 8192;  ///< query tokens of a step; >= max_num_seqs
  std::int32_t max_num_seqs = 1024;            ///< requests of a step, 1 to batchtext::max_requests
  /// Prompt and output of a request; >= 2. Llama 3.1's. A request's length is also limited to what the KV cache holds.
  std::int32_t max_model_len = 131072;
  bool enable_chunked_prefill = true;  ///< without it a step has room for the longest request
  /// Longest piece of a prompt that a step computes, 0: no limit. Needs chunked prefill.
  std::int32_t long_prefill_token_threshold = 0;
  std::int32_t block_size = 16;  ///< tokens of a KV block
  /// KV blocks there are. 2^16 hold 2^20 tokens, which are 128 GiB for Llama 3.1 8B (128 KiB a token): what 90 % of an
  /// MI300X' 192 GB leave beside its weights. num_gpu_blocks * block_size is an int32.
  std::int32_t num_gpu_blocks = 65536;
  std::int32_t num_speculative_tokens = 0;  ///< draft tokens of a decode

  // What a trace does not say is drawn, from this seed alone: the same options give the same steps, everywhere.
  std::uint64_t seed = 0;
  double draft_acceptance_rate = 0.7;  ///< chance of each draft token to be accepted if the one before it was
  /// Share of requests that find a prefix of their prompt in the KV cache (enable_prefix_caching). The prefix is up to
  /// `prefix_hit_fraction` of the prompt, in whole blocks, and leaves at least one token to compute. Its blocks are
  /// counted for each request: the traces do not say who shares them.
  double prefix_hit_rate = 0;
  double prefix_hit_fraction = 0.9;

  // A step takes step_base_us + tokens * step_token_ns of the trace's time. 8 ms is a decode step of an 8B model,
  // 25 us a token a prefill rate of 40,000 tokens a second.
  std::int32_t step_base_us = 8000;    ///< 0 to 10 s
  std::int32_t step_token_ns = 25000;  ///< 0 to 1 ms

  /// Steps carry an upper bound of their lengths, as when the next step is scheduled before this one's rejected drafts
  /// are known: exact for prefills and extends, with every draft accepted for decodes.
  bool async_scheduling = false;

  // The attention configuration of the steps; their decode_threshold is 1 + num_speculative_tokens.
  std::int32_t workspace_tokens = 32768;
  std::optional<std::int32_t> window_left;
  attn::ChunkPolicy chunk_policy = attn::ChunkPolicy::equal_share;

  friend bool operator==(const SchedulerOptions&, const SchedulerOptions&) = default;
};

/// What has happened up to and with the last step but one; after the last `next`, all of it.
struct Counters {
  std::int64_t num_steps = 0;
  std::int64_t num_completed = 0;  ///< requests with all of their output
  std::int64_t num_rejected = 0;   ///< requests whose prompt leaves no room for a token of output
  std::int64_t num_truncated = 0;  ///< requests whose output was cut to fit the longest length
  std::int64_t num_preemptions = 0;
  std::int64_t num_preempted_tokens = 0;   ///< computed tokens that preemptions threw away
  std::int64_t num_prefix_hit_tokens = 0;  ///< counted again when a preempted request is admitted again
  std::int64_t num_draft_tokens = 0;
  std::int64_t num_accepted_tokens = 0;  ///< of the draft tokens
  std::int64_t num_output_tokens = 0;

  friend bool operator==(const Counters&, const Counters&) = default;
};

/// What the scheduler knows of one request of a step, beside its lengths.
struct Row {
  std::int32_t request = 0;       ///< index in the trace
  std::int32_t num_computed = 0;  ///< tokens in the KV cache before the step
  std::int32_t num_drafts = 0;    ///< of its query tokens

  friend bool operator==(const Row&, const Row&) = default;
};

/// Deterministic (splitmix64): a stream of its own for each request, so that one request's draws do not depend on how
/// another is scheduled.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : state_(mix(seed ^ mix(stream + 1))) {}

  std::uint64_t next() { return mix(state_ += increment); }
  /// True with a chance of `rate`, 0 to 1, to within 2^-32.
  bool chance(double rate) {
    // A double times a power of two is exact: no platform rounds it another way.
    return next() >> 32 < static_cast<std::uint64_t>(rate * 4294967296.0);
  }
  /// A number in [0, limit), limit > 0. The bias of the remainder is below 2^-32 for limits of int32.
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }

 private:
  static constexpr std::uint64_t increment = 0x9E3779B97F4A7C15;
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

/// A continuous-batching scheduler after vLLM v1's, run against a model of the server: it hands out the step's batch,
/// and takes the step as done when it is asked for the next.
///
/// A step takes running requests first, in the order they were admitted, each with the tokens it lacks (a decode's one
/// and its drafts, or the next piece of a prompt) as far as the token budget goes; then waiting ones, first come first
/// served, while budget, max_num_seqs and KV blocks last. Where blocks run out the running request admitted last is
/// preempted: its blocks are freed, it returns to the head of the queue, and computes its prompt and what it has
/// generated again. In a step that preempts nobody is admitted.
///
/// Left out: one null block that vLLM keeps of its pool, the decode row that asynchronous scheduling wastes on a
/// request that has just ended, priorities, encoders, LoRA, pipeline stages.
class Scheduler {
 public:
  /// `trace` is copied as far as needed. Errors: the option that makes no sense, in a sentence.
  [[nodiscard]] static tl::expected<Scheduler, std::string> make(const RequestTrace& trace,
                                                                 const SchedulerOptions& options);

  /// The next step, in the order decode, extend, prefill; never without requests. It holds until the next call.
  /// Null when every request is done. Allocates nothing once the largest step has been seen.
  [[nodiscard]] const batchtext::Step* next();

  /// The requests of the last step, in its order. [step.requests.size()]
  [[nodiscard]] std::span<const Row> rows() const { return rows_; }
  [[nodiscard]] const Counters& counters() const { return counters_; }
  /// When the last step starts, in the trace's time.
  [[nodiscard]] std::int64_t clock_ns() const { return clock_ns_; }
  [[nodiscard]] std::int32_t num_used_blocks() const { return options_.num_gpu_blocks - num_free_blocks_; }
  [[nodiscard]] std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
  [[nodiscard]] std::int64_t num_waiting() const;
  /// Requests that are done or will never run, and all of them: the share of a run that is over.
  [[nodiscard]] std::int64_t num_finished() const { return counters_.num_completed + counters_.num_rejected; }
  [[nodiscard]] std::int64_t num_requests() const { return counters_.num_rejected + std::ssize(requests_); }
  /// Longest length a request can reach: max_model_len, or what the KV cache holds.
  [[nodiscard]] std::int32_t max_len() const { return max_len_; }

 private:
  using Id = std::int32_t;  // index in requests_
  static constexpr std::int32_t nowhere = -1;

  struct State {
    Request request;
    std::int32_t trace_index;
    Random random;
    std::int32_t prefix_hit_tokens = 0;
    std::int32_t num_generated = 0;
    std::int32_t num_computed = 0;
    std::int32_t num_blocks = 0;
    std::int32_t num_drafts = 0;      // proposed for its next step
    std::int32_t num_scheduled = 0;   // query tokens in this step, 0: not in it
    std::int32_t num_unverified = 0;  // drafts rejected in the step before, which an asynchronous host cannot know yet
    std::int32_t slot = nowhere;      // in the persistent batch

    [[nodiscard]] std::int32_t num_tokens() const { return request.prompt_tokens + num_generated; }
    /// Query tokens behind all that is known of the request are drafts.
    [[nodiscard]] std::int32_t num_scheduled_drafts() const {
      const std::int32_t beyond = num_computed + num_scheduled - num_tokens();
      return beyond > 0 ? beyond : 0;
    }
  };

  Scheduler(const RequestTrace& trace, const SchedulerOptions& options);
  State& state(Id id) { return requests_[static_cast<std::size_t>(id)]; }

  void admit_to_queue(const Request& request, std::int32_t trace_index);
  void complete_step();
  void complete_request(State& request);
  void wait_for_arrival();

  void schedule();
  [[nodiscard]] bool schedule_running(std::int32_t& budget);
  void schedule_waiting(std::int32_t budget);
  [[nodiscard]] std::int32_t cut_piece(std::int32_t num_tokens, std::int32_t budget) const;
  [[nodiscard]] bool reserve_blocks(State& request, std::int32_t num_tokens);
  [[nodiscard]] bool reserve_or_preempt(Id id, std::int32_t num_tokens);
  void preempt_last();
  void free_blocks(State& request);
  [[nodiscard]] Id waiting_head() const;
  void pop_waiting();

  void update_persistent_batch();
  void condense_persistent_batch(std::size_t first_empty);
  void reorder_persistent_batch();
  void fill_step();

  SchedulerOptions options_;
  std::int32_t max_len_;
  std::vector<State> requests_;  // by arrival
  std::vector<Id> running_;      // by admission
  // The queue: preempted requests, its head at the back, before those that never ran, [next_waiting_, num_arrived_).
  std::vector<Id> preempted_;
  Id next_waiting_ = 0;
  Id num_arrived_ = 0;
  std::int32_t num_free_blocks_;
  std::int64_t clock_ns_ = 0;
  std::int64_t step_tokens_ = 0;
  Counters counters_;

  std::vector<Id> slots_;  // the persistent batch: which request stands where
  std::vector<std::size_t> empty_slots_;
  std::vector<std::int32_t> scheduled_, computed_, prompt_, order_;
  std::vector<Id> reordered_;
  std::vector<Row> rows_;
  batchtext::Step step_;
};

}  // namespace trace
