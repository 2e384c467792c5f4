#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include <fmt/format.h>

#include <vector>

namespace properties {
namespace {

Verdict compare_region(std::string_view name, const attn::Region& found, const naive::Region& expected,
                       std::int32_t first_req) {
  attn::Region same;
  same.first_req = expected.num_reqs > 0 ? first_req : 0;
  same.num_reqs = expected.num_reqs;
  same.num_tokens = static_cast<std::int32_t>(expected.num_tokens);
  same.max_query_len = expected.max_query_len;
  same.min_query_len = expected.min_query_len;
  same.max_seq_len = expected.max_seq_len;
  same.min_seq_len = expected.min_seq_len;
  same.query_start_loc = expected.query_start_loc;
  return compare(name, found, same);
}

/// The tokens a pass gathers, read off its slices and its token map.
Verdict compare_pass(const attn::ChunkedContext& context, std::int32_t chunk,
                     const std::vector<naive::ContextToken>& expected) {
  const auto starts = context.chunk_starts[chunk];
  const auto cumulative = context.cu_seq_lens[chunk];
  const auto owners = context.token_to_batch(chunk);
  if (owners.size() != expected.size())
    return Difference{fmt::format("pass {}", chunk),
                      fmt::format("{} tokens, expected {}", owners.size(), expected.size())};
  for (std::size_t token = 0; token < owners.size(); ++token) {
    const auto owner = static_cast<std::size_t>(owners[token]);
    if (owners[token] < 0 || owner >= starts.size())
      return Difference{fmt::format("pass {}, token {}", chunk, token),
                        fmt::format("belongs to extend {}", owners[token])};
    const std::int32_t position = starts[owner] + static_cast<std::int32_t>(token) - cumulative[owner];
    if (expected[token] == naive::ContextToken{owners[token], position}) continue;
    return Difference{fmt::format("pass {}, token {}", chunk, token),
                      fmt::format("is extend {} position {}, expected extend {} position {}", owner, position,
                                  expected[token].extend, expected[token].position)};
  }
  return std::nullopt;
}

}  // namespace

Verdict metadata_equals_the_naive_one(const Built& built) {
  const naive::Metadata expected = naive::build(built.batch, built.rows);
  const attn::Metadata& found = built.metadata;
  if (auto v = compare_region("decode", found.decode, expected.decode, 0)) return v;
  if (auto v = compare_region("extend", found.extend, expected.extend, expected.decode.num_reqs)) return v;
  if (auto v = compare_region("prefill", found.prefill, expected.prefill,
                              expected.decode.num_reqs + expected.extend.num_reqs))
    return v;
  if (auto v = compare("num_padding", found.split.num_padding, expected.num_padding)) return v;
  if (auto v = compare("num_decode_tokens", found.split.num_decode_tokens, expected.num_decode_tokens)) return v;
  if (auto v = compare("num_padding_tokens", found.split.num_padding_tokens, expected.num_padding_tokens)) return v;
  if (auto v = compare("num_kv_tokens", found.num_kv_tokens, expected.num_kv_tokens)) return v;
  if (auto v = compare("num_chunks", found.context.num_chunks, static_cast<std::int64_t>(expected.passes.size())))
    return v;
  for (std::int32_t chunk = 0; chunk < found.context.num_chunks; ++chunk)
    if (auto v = compare_pass(found.context, chunk, expected.passes[static_cast<std::size_t>(chunk)])) return v;
  if (!found.window) return std::nullopt;
  if (auto v = compare("windows", std::ssize(found.window->seq_lens), std::ssize(expected.windows))) return v;
  for (std::size_t e = 0; e < expected.windows.size(); ++e) {
    if (found.window->seq_starts[e] == expected.windows[e].start &&
        found.window->seq_lens[e] == expected.windows[e].len)
      continue;
    return Difference{fmt::format("window of extend {}", e),
                      fmt::format("{} tokens from {}, expected {} from {}", found.window->seq_lens[e],
                                  found.window->seq_starts[e], expected.windows[e].len, expected.windows[e].start)};
  }
  return std::nullopt;
}

}  // namespace properties
