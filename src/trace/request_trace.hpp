#pragma once

#include "batchtext/batchtext.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

/// Request traces of real services, and the scheduler that turns them into batches.
namespace trace {

/// One request as its service logged it.
struct Request {
  std::int64_t arrival_ns = 0;     ///< since the first request of the trace; >= 0
  std::int32_t prompt_tokens = 0;  ///< >= 1
  std::int32_t output_tokens = 0;  ///< >= 1

  friend bool operator==(const Request&, const Request&) = default;
};

/// What one file holds. At least one request.
struct RequestTrace {
  std::vector<Request> requests;   ///< by arrival; rows of one instant keep their order
  std::int64_t num_no_prompt = 0;  ///< rows with 0 prompt tokens, left out: there is nothing to schedule
  std::int64_t num_no_output = 0;  ///< rows with 0 output tokens, taken as 1: a server samples after every prefill
};

/// Reads a trace in CSV. The first line names the columns, which may stand in any order, others between them:
///
///   time     `TIMESTAMP`, `2023-11-16 18:17:03.9799600` with up to 9 decimals, `T` for the space, and an offset
///            (`Z`, `+00:00`) if there is one; or `timestamp_ms`, whole milliseconds
///   prompt   `ContextTokens` or `input_length`
///   output   `GeneratedTokens` or `output_length`
///
/// Those are the Azure LLM inference traces (2023, 2024) and Mooncake's. Fields may be quoted (`""` is a quote), lines
/// may end in CR LF, and empty lines may follow the last row. Spaces around a field count for nothing.
///
/// Errors, with line and column (in bytes, from 1): a column that is missing or there twice, a row with too few
/// fields, an unfinished quote, a time or number that is none, a negative number or one above 2^31 - 1, no rows.
[[nodiscard]] tl::expected<RequestTrace, batchtext::ParseError> parse_request_trace(std::string_view text);

}  // namespace trace
