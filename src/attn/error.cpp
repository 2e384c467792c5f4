#include "attn/error.hpp"

#include <array>

namespace attn {
namespace {

struct Wording {
  std::string_view name;
  /// `%i`, `%v` and `%l` stand for index, value and limit, `%s` for the subject and `%h` for HIP's error.
  std::string_view text;
};

constexpr std::array<Wording, Error::num_kinds> wordings{{
    {"negative_num_reqs", "num_reqs is %v"},
    {"offsets_count", "query_start_loc has %v entries, num_reqs + 1 is %l"},
    {"offsets_start", "query_start_loc[0] is %v, not 0"},
    {"offsets_decreasing", "query_start_loc[%i] is %v, below the %l before it"},
    {"token_count_too_small", "num_actual_tokens is %v, below %l, where query_start_loc ends"},
    {"negative_max_query_len", "max_query_len is %v"},
    {"max_query_len_too_small", "max_query_len is %v, request %i has query_len %l"},
    {"seq_lens_count", "seq_lens has %v entries, num_reqs is %l"},
    {"upper_bound_count", "seq_lens_upper_bound has %v entries, num_reqs is %l"},
    {"negative_seq_len", "seq_lens[%i] is %v"},
    {"negative_upper_bound", "seq_lens_upper_bound[%i] is %v"},
    {"seq_len_above_bound", "seq_lens[%i] is %v, above its upper bound %l"},
    {"negative_max_seq_len", "max_seq_len is %v"},
    {"max_seq_len_too_small", "max_seq_len is %v, request %i has seq_len %l"},
    {"missing_seq_lens", "request %i is no decode, and neither seq_lens nor seq_lens_upper_bound is given"},
    {"unordered", "request %i has %v context tokens, but stands behind request %l, the first prefill"},
    {"invalid_decode_threshold", "decode_threshold is %v, below 0"},
    {"invalid_workspace", "workspace_tokens is %v, below 0"},
    {"invalid_chunk_alignment", "chunk_alignment is %v, below 1"},
    {"invalid_window", "window_left is %v, below 0"},
    {"workspace_too_small", "workspace_tokens is %v, at least %l are needed"},
    {"sum_overflow", "a sum over requests reaches %v at request %i, above %l"},
    {"capacity_exceeded", "%v %s are needed, %l is the limit"},
    {"out_of_memory", "no memory for %v bytes"},
    {"count_mismatch", "%v entries are given, %l are expected"},
    {"negative_token_count", "request %i has a token count of %v"},
    {"seq_len_below_query_len", "request %i has seq_len %v, below its query_len %l"},
    {"invalid_attn_chunk_size", "attn_chunk_size is %v, not a positive multiple of block_size %l"},
    {"invalid_block_size", "block_size is %v, below 1"},
    {"block_table_too_narrow", "the block table has %v columns, request %i needs %l"},
    {"invalid_dcp_size", "dcp_size is %v, below 1"},
    {"invalid_rank", "rank is %v, outside 0 to dcp_size %l"},
    {"invalid_interleave", "interleave is %v, below 1"},
    {"invalid_capacity", "%s is %v, below %l"},
    {"graph_mismatch", "the batch needs %v %s, the captured graph has %l"},
    {"unsupported_policy", "the device path does not cut chunks by %s"},
    {"device", "%s failed with %h (%v)"},
}};

std::string value_of(char placeholder, const Error& error) {
  switch (placeholder) {
    case 'i':
      return std::to_string(error.index);
    case 'v':
      return std::to_string(error.value);
    case 'l':
      return std::to_string(error.limit);
    case 's':
      return std::string{error.subject.empty() ? std::string_view{"entries"} : error.subject};
    default:
      return std::string{error.hip_error};
  }
}

}  // namespace

std::string_view name(Error::Kind kind) noexcept {
  return kind < Error::num_kinds ? wordings[kind].name : std::string_view{"unknown"};
}

std::string message(const Error& error) {
  std::string line{name(error.kind)};
  if (error.kind >= Error::num_kinds) return line;
  line += ": ";
  const std::string_view text = wordings[error.kind].text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      line += text[i];
      continue;
    }
    line += value_of(text[++i], error);
  }
  const bool names_index = text.find("%i") != std::string_view::npos;
  if (error.index >= 0 && !names_index) line += " (request " + std::to_string(error.index) + ")";
  return line;
}

}  // namespace attn
