#include "properties/naive.hpp"

#include <algorithm>

namespace properties::naive {
namespace {

std::optional<std::int32_t> at(std::span<const std::int32_t> first, std::span<const std::int32_t> second,
                               std::size_t i) {
  if (!first.empty()) return first[i];
  if (!second.empty()) return second[i];
  return std::nullopt;
}

bool is_long(const Row& row, const attn::Batch& batch) { return row.query_len > batch.config.decode_threshold; }

void classify(std::vector<Row>& rows, const attn::Batch& batch) {
  const auto first_long = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return is_long(row, batch); });
  if (first_long == rows.end()) return;  // all decodes, padding too
  const auto first_prefill = std::find_if(first_long, rows.end(), [&](const Row& row) {
    return is_long(row, batch) && row.class_seq_len == row.query_len;
  });
  for (auto row = first_long; row != rows.end(); ++row) {
    row->row_class = row < first_prefill ? RowClass::extend : RowClass::prefill;
    if (row->is_padding) row->row_class = RowClass::padding;
  }
}

/// Adds a row to its region. Minima start with the first row.
void add_row(Region& region, const Row& row, const attn::Batch& batch) {
  const bool first = region.num_reqs == 0;
  region.max_query_len = first ? row.query_len : std::max(region.max_query_len, row.query_len);
  region.min_query_len = first ? row.query_len : std::min(region.min_query_len, row.query_len);
  ++region.num_reqs;
  region.num_tokens += row.query_len;
  region.query_start_loc.push_back(static_cast<std::int32_t>(region.num_tokens));
  if (!row.seq_len) region.max_seq_len = batch.max_seq_len;
  if (!row.seq_len || row.is_padding) return;
  region.max_seq_len = std::max(region.max_seq_len, *row.seq_len);
  if (!batch.seq_lens.empty()) region.min_seq_len = first ? *row.seq_len : std::min(region.min_seq_len, *row.seq_len);
}

/// The least multiple of `alignment` from `tokens` on.
std::int64_t next_multiple(std::int64_t tokens, std::int64_t alignment) {
  const std::int64_t beyond = tokens % alignment;
  return beyond == 0 ? tokens : tokens + alignment - beyond;
}

/// The largest multiple of `alignment` up to `tokens`.
std::int64_t last_multiple(std::int64_t tokens, std::int64_t alignment) { return tokens - tokens % alignment; }

using Passes = std::vector<std::vector<ContextToken>>;

void put(Passes& passes, std::int64_t pass, std::size_t extend, std::int64_t position) {
  const auto at = static_cast<std::size_t>(pass);
  if (passes.size() <= at) passes.resize(at + 1);
  passes[at].push_back({static_cast<std::int32_t>(extend), static_cast<std::int32_t>(position)});
}

/// A token's pass follows from its position alone.
Passes lay_out_shares(const std::vector<std::int64_t>& contexts, std::int64_t share) {
  Passes passes;
  for (std::size_t e = 0; e < contexts.size(); ++e)
    for (std::int64_t position = 0; position < contexts[e]; ++position) put(passes, position / share, e, position);
  return passes;
}

/// A token's pass follows from its place in a row of all contexts, each of which starts on the alignment.
Passes lay_out_packed(const std::vector<std::int64_t>& contexts, std::int64_t size, std::int64_t alignment) {
  Passes passes;
  std::int64_t place = 0;
  for (std::size_t e = 0; e < contexts.size(); ++e) {
    place = next_multiple(place, alignment);
    for (std::int64_t position = 0; position < contexts[e]; ++position) put(passes, place++ / size, e, position);
  }
  return passes;
}

/// Pass after pass is filled, as vLLM's planner for MLA does it.
Passes lay_out_mla(const std::vector<std::int64_t>& contexts, std::int64_t workspace, std::int64_t alignment) {
  Passes passes;
  std::int64_t pass = 0;
  std::int64_t used = 0;
  const auto end_pass = [&] {
    pass += used > 0 ? 1 : 0;
    used = 0;
  };
  for (std::size_t e = 0; e < contexts.size(); ++e) {
    std::int64_t position = 0;
    while (position < contexts[e]) {
      const std::int64_t rest = contexts[e] - position;
      const bool fits = rest <= workspace - used;
      const std::int64_t taken = fits ? rest : last_multiple(workspace - used, alignment);
      for (std::int64_t i = 0; i < taken; ++i) put(passes, pass, e, position++);
      used += taken;
      if (!fits) end_pass();
    }
    if (contexts[e] == 0) end_pass();
  }
  return passes;
}

/// Puts every context token into the pass the policy gives it.
Passes lay_out(const std::vector<std::int64_t>& contexts, const attn::Config& config) {
  const std::int64_t workspace = config.workspace_tokens;
  const std::int64_t alignment = config.chunk_alignment;
  if (std::all_of(contexts.begin(), contexts.end(), [](std::int64_t context) { return context == 0; })) return {};
  switch (config.chunk_policy) {
    case attn::ChunkPolicy::equal_share:
      return lay_out_shares(contexts, last_multiple(workspace / std::ssize(contexts), alignment));
    case attn::ChunkPolicy::packed:
      return lay_out_packed(contexts, last_multiple(workspace, alignment), alignment);
    case attn::ChunkPolicy::mla:
      return lay_out_mla(contexts, workspace, alignment);
    case attn::ChunkPolicy::none:
      return {};
  }
  return {};
}

/// Passes by vLLM's planner for MLA. A long context takes one pass after the other, all of the same size.
std::int64_t count_mla(const std::vector<std::int64_t>& contexts, std::int64_t workspace, std::int64_t alignment) {
  std::int64_t ended = 0;
  std::int64_t used = 0;
  for (const std::int64_t context : contexts) {
    std::int64_t rest = context;
    if (rest > workspace - used && rest > 0) {
      // What is left of the pass, and then whole ones.
      rest -= last_multiple(workspace - used, alignment);
      ended += 1;
      used = 0;
      const std::int64_t whole = last_multiple(workspace, alignment);
      if (rest > workspace) {
        const std::int64_t more = (rest - workspace + whole - 1) / whole;
        ended += more;
        rest -= more * whole;
      }
    }
    used += rest;
    if (context == 0) {
      ended += used > 0 ? 1 : 0;
      used = 0;
    }
  }
  return ended + (used > 0 ? 1 : 0);
}

Window window_of(const Row& row, std::int64_t window_left) {
  const std::int64_t seq_len = row.seq_len.value_or(0);
  // The first query stands at seq_len - query_len and sees itself and window_left keys before it; upstream keeps one
  // more.
  const std::int64_t start = std::max<std::int64_t>(seq_len - row.query_len - window_left - 1, 0);
  return {static_cast<std::int32_t>(start), static_cast<std::int32_t>(seq_len - start)};
}

}  // namespace

std::vector<Row> rows_of(const attn::Batch& batch) {
  std::vector<Row> rows(static_cast<std::size_t>(batch.num_reqs));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].query_len = batch.query_start_loc[i + 1] - batch.query_start_loc[i];
    rows[i].class_seq_len = at(batch.seq_lens_upper_bound, batch.seq_lens, i);
    rows[i].seq_len = at(batch.seq_lens, batch.seq_lens_upper_bound, i);
    const std::int64_t context = std::int64_t{rows[i].seq_len.value_or(0)} - rows[i].query_len;
    rows[i].context = static_cast<std::int32_t>(std::max<std::int64_t>(context, 0));
  }
  for (auto row = rows.rbegin(); row != rows.rend() && row->query_len == 0; ++row) row->is_padding = true;
  classify(rows, batch);
  return rows;
}

std::vector<std::int64_t> contexts_of(const std::vector<Row>& rows) {
  std::vector<std::int64_t> contexts;
  contexts.reserve(rows.size());
  for (const Row& row : rows)
    if (row.row_class == RowClass::extend) contexts.push_back(row.context);
  return contexts;
}

Metadata build(const attn::Batch& batch, const std::vector<Row>& rows) {
  Metadata metadata;
  for (const Row& row : rows) {
    if (!row.is_padding) metadata.num_kv_tokens += row.seq_len.value_or(batch.max_seq_len);
    switch (row.row_class) {
      case RowClass::decode:
        add_row(metadata.decode, row, batch);
        break;
      case RowClass::prefill:
        add_row(metadata.prefill, row, batch);
        break;
      case RowClass::padding:
        ++metadata.num_padding;
        break;
      case RowClass::extend:
        add_row(metadata.extend, row, batch);
        if (batch.config.window_left) metadata.windows.push_back(window_of(row, *batch.config.window_left));
        break;
    }
  }
  const std::int64_t owned = metadata.decode.num_tokens + metadata.extend.num_tokens + metadata.prefill.num_tokens;
  const bool any_long = std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return is_long(row, batch); });
  metadata.num_padding_tokens = any_long ? batch.num_actual_tokens - owned : 0;
  metadata.num_decode_tokens = any_long ? metadata.decode.num_tokens : batch.num_actual_tokens;
  metadata.passes = lay_out(contexts_of(rows), batch.config);
  return metadata;
}

std::int64_t least_workspace(std::int64_t num_extends, const attn::Config& config) {
  switch (config.chunk_policy) {
    case attn::ChunkPolicy::equal_share:
      return num_extends * config.chunk_alignment;
    case attn::ChunkPolicy::packed:
    case attn::ChunkPolicy::mla:
      return config.chunk_alignment;
    case attn::ChunkPolicy::none:
      return 0;
  }
  return 0;
}

std::int64_t count_passes(const std::vector<std::int64_t>& contexts, const attn::Config& config) {
  const std::int64_t alignment = config.chunk_alignment;
  std::int64_t places = 0;
  std::int64_t longest = 0;
  for (const std::int64_t context : contexts) {
    places += next_multiple(context, alignment);
    longest = std::max(longest, context);
  }
  if (longest == 0) return 0;
  const auto passes_of = [](std::int64_t tokens, std::int64_t size) {
    return tokens / size + (tokens % size != 0 ? 1 : 0);
  };
  switch (config.chunk_policy) {
    case attn::ChunkPolicy::equal_share:
      return passes_of(longest, last_multiple(config.workspace_tokens / std::ssize(contexts), alignment));
    case attn::ChunkPolicy::packed:
      return passes_of(places, last_multiple(config.workspace_tokens, alignment));
    case attn::ChunkPolicy::mla:
      return count_mla(contexts, config.workspace_tokens, alignment);
    case attn::ChunkPolicy::none:
      return 0;
  }
  return 0;
}

}  // namespace properties::naive
