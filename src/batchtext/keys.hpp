#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// What parser and printer have to agree on.
namespace batchtext {

/// `k` behind a length.
inline constexpr std::int64_t kilo = 1024;

/// The keys, in the order they are printed in.
enum class Key : std::size_t {
  decode_threshold,
  workspace_tokens,
  chunk_policy,
  chunk_alignment,
  window_left,
  batch,
  num_reqs,
  query_start_loc,
  seq_lens,
  seq_lens_upper_bound,
  num_actual_tokens,
  max_query_len,
  max_seq_len,
  schedule_seed,
  fail_call
};
inline constexpr std::size_t num_keys = static_cast<std::size_t>(Key::fail_call) + 1;
inline constexpr std::array<std::string_view, num_keys> key_names{"decode_threshold",  "workspace_tokens",
                                                                  "chunk_policy",      "chunk_alignment",
                                                                  "window_left",       "batch",
                                                                  "num_reqs",          "query_start_loc",
                                                                  "seq_lens",          "seq_lens_upper_bound",
                                                                  "num_actual_tokens", "max_query_len",
                                                                  "max_seq_len",       "schedule_seed",
                                                                  "fail_call"};

[[nodiscard]] constexpr std::string_view name_of(Key key) { return key_names[static_cast<std::size_t>(key)]; }

}  // namespace batchtext
