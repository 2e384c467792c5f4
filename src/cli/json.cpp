#include "cli/json.hpp"

#include <optional>
#include <span>
#include <string>

namespace cli {
namespace {

template <class T>
Json array(std::span<const T> values) {
  Json out = Json::array();
  for (const T value : values) out.push_back(value);
  return out;
}

/// `num_rows` is not the data's to say: without columns it has no rows to count.
Json matrix(const attn::Rows<const std::int32_t>& rows, std::int32_t num_rows) {
  Json out = Json::array();
  for (std::int32_t row = 0; row < num_rows; ++row) out.push_back(array(rows[row]));
  return out;
}

Json split_json(const attn::Split& split) {
  return {{"num_decodes", split.num_decodes},
          {"num_extends", split.num_extends},
          {"num_prefills", split.num_prefills},
          {"num_padding", split.num_padding},
          {"num_decode_tokens", split.num_decode_tokens},
          {"num_extend_tokens", split.num_extend_tokens},
          {"num_prefill_tokens", split.num_prefill_tokens},
          {"num_padding_tokens", split.num_padding_tokens}};
}

Json region_json(const attn::Region& region) {
  return {{"first_req", region.first_req},         {"num_reqs", region.num_reqs},
          {"num_tokens", region.num_tokens},       {"max_query_len", region.max_query_len},
          {"min_query_len", region.min_query_len}, {"max_seq_len", region.max_seq_len},
          {"min_seq_len", region.min_seq_len},     {"query_start_loc", array(region.query_start_loc)}};
}

Json context_json(const attn::ChunkedContext& context) {
  Json owners = Json::array();
  for (std::int32_t chunk = 0; chunk < context.num_chunks; ++chunk)
    owners.push_back(array(context.token_to_batch(chunk)));
  return {{"num_chunks", context.num_chunks},
          {"context_lens", array(context.context_lens)},
          {"chunk_starts", matrix(context.chunk_starts, context.num_chunks)},
          {"seq_lens", matrix(context.seq_lens, context.num_chunks)},
          {"cu_seq_lens", matrix(context.cu_seq_lens, context.num_chunks)},
          {"seq_tot", array(context.seq_tot)},
          {"max_seq_lens", array(context.max_seq_lens)},
          {"token_start", array(context.token_start)},
          {"token_to_batch", owners}};
}

Json window_json(const std::optional<attn::SlidingWindow>& window) {
  if (!window) return nullptr;
  return {{"seq_starts", array(window->seq_starts)},   {"seq_lens", array(window->seq_lens)},
          {"cu_seq_lens", array(window->cu_seq_lens)}, {"token_to_batch", array(window->token_to_batch)},
          {"max_seq_len", window->max_seq_len},        {"total_tokens", window->total_tokens}};
}

}  // namespace

Json to_json(const attn::Metadata& metadata) {
  return {{"split", split_json(metadata.split)},       {"decode", region_json(metadata.decode)},
          {"extend", region_json(metadata.extend)},    {"prefill", region_json(metadata.prefill)},
          {"context", context_json(metadata.context)}, {"window", window_json(metadata.window)},
          {"num_kv_tokens", metadata.num_kv_tokens}};
}

Json to_json(const attn::Error& error) {
  return {{"kind", std::string{attn::name(error.kind)}},
          {"index", error.index},
          {"value", error.value},
          {"limit", error.limit},
          {"message", attn::message(error)}};
}

Json to_json(const tl::expected<attn::Metadata, attn::Error>& built) {
  if (built) return to_json(*built);
  Json out = Json::object();
  out["error"] = to_json(built.error());
  return out;
}

std::int64_t num_json_entries(const attn::Metadata& metadata) noexcept {
  const auto count = [](const auto& span) { return static_cast<std::int64_t>(span.size()); };
  const attn::ChunkedContext& context = metadata.context;
  std::int64_t entries = count(metadata.decode.query_start_loc) + count(metadata.extend.query_start_loc) +
                         count(metadata.prefill.query_start_loc) + count(context.context_lens) +
                         count(context.chunk_starts.data) + count(context.seq_lens.data) +
                         count(context.cu_seq_lens.data) + count(context.seq_tot) + count(context.max_seq_lens) +
                         count(context.token_start) + count(context.token_to_batch_data);
  if (metadata.window) entries += 3 * count(metadata.window->seq_lens) + 1 + count(metadata.window->token_to_batch);
  return entries;
}

}  // namespace cli
