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

/// Puts every context token into the pass the policy gives it.
std::vector<std::vector<ContextToken>> lay_out(const std::vector<std::int64_t>& contexts, const attn::Config& config) {
  std::vector<std::vector<ContextToken>> passes;
  const bool packed = config.chunk_policy == attn::ChunkPolicy::packed;
  const std::int64_t share = packed || contexts.empty()
                                 ? config.workspace_tokens
                                 : config.workspace_tokens / static_cast<std::int64_t>(contexts.size());
  std::int64_t before = 0;
  for (std::size_t e = 0; e < contexts.size(); ++e) {
    for (std::int64_t position = 0; position < contexts[e]; ++position) {
      const auto pass = static_cast<std::size_t>((packed ? before : position) / share);
      if (passes.size() <= pass) passes.resize(pass + 1);
      passes[pass].push_back({static_cast<std::int32_t>(e), static_cast<std::int32_t>(position)});
      ++before;
    }
  }
  return passes;
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

std::int64_t count_passes(const std::vector<std::int64_t>& contexts, std::int64_t workspace_tokens,
                          attn::ChunkPolicy policy) {
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const std::int64_t context : contexts) {
    total += context;
    longest = std::max(longest, context);
  }
  if (total == 0) return 0;
  const bool packed = policy == attn::ChunkPolicy::packed;
  const std::int64_t size = packed ? workspace_tokens : workspace_tokens / static_cast<std::int64_t>(contexts.size());
  const std::int64_t tokens = packed ? total : longest;
  return tokens / size + (tokens % size != 0 ? 1 : 0);
}

}  // namespace properties::naive
