#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace properties {
namespace {

std::string at(std::int64_t chunk, std::size_t extend) { return fmt::format("chunk {}, extend {}", chunk, extend); }

/// Every array of the context has the rank its documentation gives, also without chunks.
Verdict shapes_are_right(const Built& built) {
  const attn::ChunkedContext& context = built.metadata.context;
  const std::int64_t chunks = context.num_chunks;
  const auto extends = static_cast<std::int64_t>(built.contexts.size());
  const auto size = [](auto span) { return static_cast<std::int64_t>(span.size()); };
  if (auto v = compare("size of context_lens", size(context.context_lens), extends)) return v;
  if (auto v = compare("columns of chunk_starts", context.chunk_starts.num_cols, extends)) return v;
  if (auto v = compare("size of chunk_starts", size(context.chunk_starts.data), chunks * extends)) return v;
  if (auto v = compare("columns of seq_lens", context.seq_lens.num_cols, extends)) return v;
  if (auto v = compare("size of seq_lens", size(context.seq_lens.data), chunks * extends)) return v;
  if (auto v = compare("columns of cu_seq_lens", context.cu_seq_lens.num_cols, extends + 1)) return v;
  if (auto v = compare("size of cu_seq_lens", size(context.cu_seq_lens.data), chunks * (extends + 1))) return v;
  if (auto v = compare("size of seq_tot", size(context.seq_tot), chunks)) return v;
  if (auto v = compare("size of max_seq_lens", size(context.max_seq_lens), chunks)) return v;
  return compare("size of token_start", size(context.token_start), chunks + 1);
}

/// The map of tokens is cut in passes, in order, and has an entry for each token and no more.
Verdict map_is_cut_in_passes(const attn::ChunkedContext& context) {
  if (auto v = compare("first of token_start", context.token_start.front(), 0)) return v;
  for (std::size_t chunk = 1; chunk < context.token_start.size(); ++chunk)
    if (context.token_start[chunk] < context.token_start[chunk - 1])
      return Difference{fmt::format("token_start[{}]", chunk), "falls"};
  return compare("size of token_to_batch", std::ssize(context.token_to_batch_data), context.token_start.back());
}

Verdict window_shapes_are_right(const Built& built, const attn::SlidingWindow& window) {
  const auto extends = static_cast<std::int64_t>(built.contexts.size());
  const auto size = [](auto span) { return static_cast<std::int64_t>(span.size()); };
  std::int64_t tokens = 0;
  for (const naive::Row& row : built.rows)
    if (row.row_class == naive::RowClass::extend)
      tokens += std::min<std::int64_t>(*row.seq_len, std::int64_t{row.query_len} + *built.batch.config.window_left + 1);
  if (auto v = compare("size of the window's seq_starts", size(window.seq_starts), extends)) return v;
  if (auto v = compare("size of the window's seq_lens", size(window.seq_lens), extends)) return v;
  if (auto v = compare("size of the window's cu_seq_lens", size(window.cu_seq_lens), extends + 1)) return v;
  return compare("size of the window's token_to_batch", size(window.token_to_batch), tokens);
}

}  // namespace

Verdict every_context_token_is_gathered_once(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  const auto& expected = built.contexts;
  std::vector<std::int64_t> gathered(expected.size());
  for (std::int64_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    const auto starts = context.chunk_starts[chunk];
    const auto lens = context.seq_lens[chunk];
    for (std::size_t e = 0; e < expected.size(); ++e) {
      if (lens[e] < 0) return Difference{at(chunk, e), fmt::format("slice of {} tokens", lens[e])};
      if (lens[e] > 0 && starts[e] != gathered[e])
        return Difference{at(chunk, e),
                          fmt::format("slice starts at {}, {} tokens are gathered so far", starts[e], gathered[e])};
      gathered[e] += lens[e];
    }
  }
  const bool has_plan = built.batch.config.chunk_policy != attn::ChunkPolicy::none;
  for (std::size_t e = 0; e < expected.size(); ++e) {
    const std::int64_t wanted = has_plan ? expected[e] : 0;
    if (auto v = compare_at("extend", static_cast<std::int64_t>(e), "tokens gathered", gathered[e], wanted)) return v;
    if (auto v =
            compare_at("extend", static_cast<std::int64_t>(e), "context_lens", context.context_lens[e], expected[e]))
      return v;
  }
  return std::nullopt;
}

Verdict no_chunk_exceeds_the_workspace(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  for (std::int64_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    std::int64_t tokens = 0;
    for (const std::int32_t len : context.seq_lens[chunk]) tokens += len;
    if (tokens > built.batch.config.workspace_tokens)
      return Difference{fmt::format("chunk {}", chunk),
                        fmt::format("{} tokens, the workspace holds {}", tokens, built.batch.config.workspace_tokens)};
  }
  return std::nullopt;
}

Verdict cumulative_lengths_add_up(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  if (auto v = map_is_cut_in_passes(context)) return v;
  for (std::int64_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    const auto lens = context.seq_lens[chunk];
    const auto cumulative = context.cu_seq_lens[chunk];
    const auto c = static_cast<std::size_t>(chunk);
    if (cumulative[0] != 0)
      return Difference{fmt::format("chunk {}", chunk), fmt::format("starts at {}", cumulative[0])};
    std::int32_t longest = 0;
    for (std::size_t e = 0; e < lens.size(); ++e) {
      if (std::int64_t{cumulative[e + 1]} - cumulative[e] != lens[e])
        return Difference{at(chunk, e), fmt::format("rises from {} to {}, the slice has {} tokens", cumulative[e],
                                                    cumulative[e + 1], lens[e])};
      longest = std::max(longest, lens[e]);
    }
    if (auto v = compare_at("chunk", chunk, "seq_tot", context.seq_tot[c], cumulative.back())) return v;
    if (auto v = compare_at("chunk", chunk, "max_seq_lens", context.max_seq_lens[c], longest)) return v;
    if (auto v = compare_at("chunk", chunk, "tokens in the map", context.token_start[c + 1] - context.token_start[c],
                            cumulative.back()))
      return v;
  }
  return std::nullopt;
}

Verdict token_to_batch_inverts_cumulative_lengths(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  if (auto v = map_is_cut_in_passes(context)) return v;
  for (std::int32_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    const auto cumulative = context.cu_seq_lens[chunk];
    const auto owners = context.token_to_batch(chunk);
    for (std::size_t token = 0; token < owners.size(); ++token) {
      const auto owner = static_cast<std::size_t>(owners[token]);
      const auto place = static_cast<std::int64_t>(token);
      if (owners[token] < 0 || owner + 1 >= cumulative.size() || cumulative[owner] > place ||
          cumulative[owner + 1] <= place)
        return Difference{fmt::format("chunk {}, token {}", chunk, token),
                          fmt::format("belongs to extend {}, whose slice is elsewhere", owners[token])};
    }
  }
  return std::nullopt;
}

Verdict no_context_means_no_chunk(const Built& built) {
  const auto& contexts = built.contexts;
  const bool any = std::any_of(contexts.begin(), contexts.end(), [](std::int64_t context) { return context > 0; });
  const attn::ChunkPolicy policy = built.batch.config.chunk_policy;
  const bool expected = any && policy != attn::ChunkPolicy::none;
  if (expected == (built.metadata.context.num_chunks > 0)) return std::nullopt;
  return Difference{"num_chunks", fmt::format("{} with {} context, chunk_policy {}", built.metadata.context.num_chunks,
                                              any ? "some" : "no", attn::name(policy))};
}

Verdict chunks_are_full_and_few(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  const attn::Config& config = built.batch.config;
  for (std::int64_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    const auto lens = context.seq_lens[chunk];
    if (std::none_of(lens.begin(), lens.end(), [](std::int32_t len) { return len > 0; }))
      return Difference{fmt::format("chunk {}", chunk), "is empty"};
  }
  if (config.chunk_policy == attn::ChunkPolicy::packed && config.chunk_alignment == 1) {
    // The fewest there can be: only the last chunk has room left.
    for (std::size_t chunk = 0; chunk + 1 < context.seq_tot.size(); ++chunk)
      if (auto v = compare_at("chunk", static_cast<std::int64_t>(chunk), "seq_tot", context.seq_tot[chunk],
                              config.workspace_tokens))
        return v;
  }
  return compare("num_chunks", context.num_chunks, naive::count_passes(built.contexts, config));
}

Verdict slices_start_on_the_alignment(const Built& built) {
  if (auto v = shapes_are_right(built)) return v;
  const attn::ChunkedContext& context = built.metadata.context;
  const std::int32_t alignment = built.batch.config.chunk_alignment;
  for (std::int64_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    const auto starts = context.chunk_starts[chunk];
    const auto lens = context.seq_lens[chunk];
    for (std::size_t e = 0; e < lens.size(); ++e)
      if (lens[e] > 0 && starts[e] % alignment != 0)
        return Difference{at(chunk, e), fmt::format("starts at {}, off the alignment of {}", starts[e], alignment)};
  }
  return std::nullopt;
}

Verdict window_is_the_last_tokens(const Built& built) {
  if (built.metadata.window.has_value() != built.batch.config.window_left.has_value())
    return Difference{"window", "present without window_left, or absent with it"};
  if (!built.metadata.window) return std::nullopt;
  const attn::SlidingWindow& window = *built.metadata.window;
  if (auto v = window_shapes_are_right(built, window)) return v;
  std::size_t e = 0;
  std::int64_t token = 0;
  std::int32_t longest = 0;
  for (const naive::Row& row : built.rows) {
    if (row.row_class != naive::RowClass::extend) continue;
    const std::int64_t reach = std::int64_t{row.query_len} + *built.batch.config.window_left + 1;
    const std::int64_t expected = std::min<std::int64_t>(*row.seq_len, reach);
    if (auto v = compare_at("extend", static_cast<std::int64_t>(e), "window", window.seq_lens[e], expected)) return v;
    if (auto v = compare_at("extend", static_cast<std::int64_t>(e), "window end",
                            std::int64_t{window.seq_starts[e]} + window.seq_lens[e], *row.seq_len))
      return v;
    if (auto v = compare_at("extend", static_cast<std::int64_t>(e), "place", window.cu_seq_lens[e], token)) return v;
    longest = std::max(longest, window.seq_lens[e]);
    for (std::int64_t i = 0; i < expected; ++i, ++token)
      if (window.token_to_batch[static_cast<std::size_t>(token)] != static_cast<std::int32_t>(e))
        return Difference{fmt::format("window token {}", token),
                          fmt::format("belongs to extend {}, expected {}",
                                      window.token_to_batch[static_cast<std::size_t>(token)], e)};
    ++e;
  }
  if (auto v = compare("cu_seq_lens of the window, end", window.cu_seq_lens[e], token)) return v;
  if (auto v = compare("max_seq_len of the window", window.max_seq_len, longest)) return v;
  return compare("total_tokens of the window", window.total_tokens, token);
}

}  // namespace properties
