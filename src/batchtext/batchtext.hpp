#pragma once

#include "attn/batch.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The text form of batches (`.batch`): what fuzz inputs, crash files, seeds and regressions are written in.
///
///   attnfuzz 1
///   # one `key value` a line; every key may be left out
///   decode_threshold 4
///   batch 8q1s1k_q16s4k_2q2k
///   then
///   batch 3q1s9                # decode_threshold is still 4
///
/// `batch` takes the grammar of vLLM's attention benchmarks: segments joined by `_`, each
/// `(count)q<len>(k)(s<len>(k))`, `k` for x1024; without `s` the request has no context. `kv` may stand for `s`.
/// `then` starts the next step on the same builder. The settings (`decode_threshold`, `workspace_tokens`,
/// `chunk_policy`, `chunk_alignment`, `window_left`) stay as they are until a later step sets them again: `window_left
/// none` ends a window. Every other key holds for its own step alone.
///
/// `query_start_loc`, `seq_lens`, `seq_lens_upper_bound`, `num_reqs`, `num_actual_tokens`, `max_query_len` and
/// `max_seq_len` override what `batch` implies. An array is a list of numbers, `batch` (what `batch` implies), or
/// `none`. Without `num_reqs` there are as many requests as most of `batch` and the three arrays say; where as many say
/// another, the first of them in the order above, `batch` first.
///
/// `schedule_seed` (0 or more) orders threads, blocks and streams where a simulated device builds the step; `fail_call`
/// (1 or more) says which HIP call of that build fails, counted from 1. What builds on the host reads neither.
namespace batchtext {

/// Four times the requests a server is configured for at most (vLLM's largest max_num_seqs in use is 16,384), and
/// small enough that a batch of them costs a fuzzer milliseconds.
inline constexpr std::int64_t max_requests = 65536;
/// Steps of one file: enough for any sequence a person reads, and bounds what one fuzz input can cost.
inline constexpr std::int64_t max_steps = 64;
/// The longest file, its last newline aside: 65,536 requests of the longest form (23 bytes) and three raw arrays of
/// as many 11-digit numbers fit.
inline constexpr std::int64_t max_text_bytes = std::int64_t{4} << 20;

/// One request of a step.
struct Request {
  std::int32_t query_len = 0;  ///< new tokens, 0 for padding; >= 0
  std::int32_t seq_len = 0;    ///< tokens in the KV cache after the step; >= 0

  friend bool operator==(const Request&, const Request&) = default;
};

/// An array of lengths that a step hands over: none, those of its requests, or any numbers at all.
struct Lens {
  enum Source : std::uint8_t { none, from_batch, raw };
  Source source = none;
  std::vector<std::int32_t> values;  ///< raw only

  friend bool operator==(const Lens&, const Lens&) = default;
};

/// One batch with its configuration, as values.
struct Step {
  attn::Config config;
  std::vector<Request> requests;
  Lens seq_lens{Lens::from_batch, {}};
  Lens seq_lens_upper_bound{Lens::none, {}};
  // What `requests` imply, unless given.
  std::optional<std::vector<std::int32_t>> query_start_loc;  ///< empty: no offsets at all
  std::optional<std::int32_t> num_reqs;
  std::optional<std::int32_t> num_actual_tokens;
  std::optional<std::int32_t> max_query_len;
  std::optional<std::int32_t> max_seq_len;
  std::int32_t schedule_seed = 0;         ///< order of a simulated device's threads, blocks and streams; >= 0
  std::optional<std::int32_t> fail_call;  ///< the HIP call of the step's build that fails, from 1

  friend bool operator==(const Step&, const Step&) = default;
};

/// What one file holds: consecutive steps on one builder. At least one.
struct Case {
  std::vector<Step> steps;

  friend bool operator==(const Case&, const Case&) = default;
};

/// Where a text stops making sense, and why.
struct ParseError {
  std::int32_t line = 0;    ///< from 1
  std::int32_t column = 0;  ///< from 1, in bytes
  std::string what;

  friend bool operator==(const ParseError&, const ParseError&) = default;
};

/// `file:line:column: what`
[[nodiscard]] std::string message(const ParseError& error, std::string_view file);

/// Reads a file's text. Any bytes may come in; what is not a text of version 1 within the limits is an error. A UTF-8
/// byte order mark in front is passed over.
[[nodiscard]] tl::expected<Case, ParseError> parse(std::string_view text);

/// Reads one batch in vLLM's grammar. Columns count from the start of `spec`, the line is 1.
[[nodiscard]] tl::expected<std::vector<Request>, ParseError> parse_requests(std::string_view spec);

/// The policy of that name; nothing for any other word.
[[nodiscard]] std::optional<attn::ChunkPolicy> parse_chunk_policy(std::string_view name);

/// The canonical text: keys in fixed order, defaults and settings of the step before left out, equal neighbours
/// counted. parse(print(c)) == c for every case that `parse` can return.
[[nodiscard]] std::string print(const Case& parsed);

/// The same into `text`, which keeps its memory.
void print(const Case& parsed, std::string& text);

/// The requests in vLLM's grammar, equal neighbours counted.
[[nodiscard]] std::string print_requests(const std::vector<Request>& requests);

/// The host arrays of a step, each on the heap in exactly its size, so that AddressSanitizer sees the first byte
/// read past an end.
class Arrays {
 public:
  explicit Arrays(const Step& step);
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  Arrays(Arrays&&) = default;
  Arrays& operator=(Arrays&&) = default;

  /// A batch of views of these arrays; valid as long as they are.
  [[nodiscard]] const attn::Batch& batch() const noexcept { return batch_; }

 private:
  std::vector<std::int32_t> query_start_loc_;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int32_t> seq_lens_upper_bound_;
  attn::Batch batch_;
};

}  // namespace batchtext
