#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn {

/// Why an input was refused. Every kind of malformed input has its own; `message` puts it in one line.
///
/// A value, never an exception: nothing an input can contain makes this library throw, assert or abort.
struct Error {
  enum Kind : std::uint8_t {
    // The batch as handed over.
    negative_num_reqs,         ///< value: num_reqs
    offsets_count,             ///< value: entries of query_start_loc, limit: num_reqs + 1
    offsets_start,             ///< value: query_start_loc[0], which is not 0
    offsets_decreasing,        ///< index: entry, value: it, limit: the entry before it
    token_count_too_small,     ///< value: num_actual_tokens, limit: the last offset, which it may exceed
    negative_max_query_len,    ///< value: max_query_len
    max_query_len_too_small,   ///< index: a longest request, value: max_query_len, limit: its query_len
    seq_lens_count,            ///< value: entries of seq_lens, limit: num_reqs
    upper_bound_count,         ///< value: entries of seq_lens_upper_bound, limit: num_reqs
    negative_seq_len,          ///< index: request, value: its seq_len
    negative_upper_bound,      ///< index: request, value: its bound
    seq_len_above_bound,       ///< index: request, value: its seq_len, limit: its bound
    negative_max_seq_len,      ///< value: max_seq_len
    max_seq_len_too_small,     ///< index: a longest request, value: max_seq_len, limit: its length
    missing_seq_lens,          ///< index: the first extend or prefill, which needs a length
    unordered,                 ///< index: request with context, value: the context, limit: the first prefill
    invalid_decode_threshold,  ///< value: decode_threshold below 0
    invalid_workspace,         ///< value: workspace_tokens below 0
    invalid_chunk_alignment,   ///< value: chunk_alignment below 1
    invalid_window,            ///< value: window_left below 0
    workspace_too_small,  ///< value: workspace_tokens, limit: the least that works; index: request, if one is to blame
    sum_overflow,         ///< index: request at which a sum leaves int32, value: the sum, limit: 2^31 - 1
    capacity_exceeded,  ///< value: entries or elements needed, limit: what there is; subject: of what, if of one thing
    out_of_memory,      ///< value: bytes asked for
    // Rooms besides the builder.
    count_mismatch,           ///< value: entries given, limit: entries of the array it belongs to
    negative_token_count,     ///< index: request, value: its token count
    seq_len_below_query_len,  ///< index: request, value: seq_len, limit: query_len
    invalid_attn_chunk_size,  ///< value: attn_chunk_size, limit: block_size that has to divide it
    invalid_block_size,       ///< value: block_size below 1
    block_table_too_narrow,   ///< index: request, value: columns there are, limit: columns its length needs
    invalid_dcp_size,         ///< value: dcp_size below 1
    invalid_rank,             ///< value: rank, limit: dcp_size
    invalid_interleave,       ///< value: interleave size below 1
    // The device path.
    invalid_capacity,  ///< subject: a number of Capacity, value: it, limit: the least that works
    graph_mismatch,  ///< subject: what a captured graph has otherwise, value: what the batch needs, limit: the graph's
    unsupported_policy,  ///< subject: a chunk policy that is for the CPU only
    device,              ///< subject: the HIP call that failed, hip_error: HIP's name for it, value: its number
  };
  static constexpr int num_kinds = device + 1;

  Kind kind{};
  std::int64_t index = -1;  ///< request or array entry the error is about, -1 when it is about none
  std::int64_t value = 0;   ///< what was found
  std::int64_t limit = 0;   ///< what it was held against, where there is such a number
  // Text that lives as long as the program.
  std::string_view subject{};    ///< the call or the quantity the error is about, where the kind has several
  std::string_view hip_error{};  ///< device only

  friend bool operator==(const Error&, const Error&) = default;
};

/// The kind's name as it is written in the source, `missing_seq_lens` for one.
[[nodiscard]] std::string_view name(Error::Kind kind) noexcept;

/// One line that names the kind, the index, the value and the limit.
[[nodiscard]] std::string message(const Error& error);

}  // namespace attn
