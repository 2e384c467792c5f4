#include "properties/golden_mla.hpp"

#include "properties/check.hpp"

#include "attn/mla_context.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

namespace properties {
namespace {

using json = nlohmann::json;
using Ints = std::vector<std::int32_t>;

json array_of(std::span<const std::int32_t> values) { return json(Ints(values.begin(), values.end())); }

/// nlohmann-json would cut a longer number to fit.
std::int32_t length_of(const json& value) {
  if (!value.is_number_integer() || value < 0 || value > 2147483647)
    throw std::invalid_argument(value.dump() + " is no length");
  return value.get<std::int32_t>();
}

Ints lengths_of(const json& values) {
  if (!values.is_array()) throw std::invalid_argument(values.dump() + " is no array");
  Ints lengths;
  for (const json& value : values) lengths.push_back(length_of(value));
  return lengths;
}

/// A planner's input, from a record.
struct Recorded {
  Ints context_lens;
  Ints query_start_loc{0};
  attn::MlaContextInput input;

  explicit Recorded(const json& record) : context_lens(lengths_of(record.at("context_lens"))) {
    std::int64_t tokens = 0;
    for (const std::int32_t query_len : lengths_of(record.at("query_lens"))) {
      tokens += query_len;
      if (tokens > 2147483647) throw std::invalid_argument("query_lens leave int32");
      query_start_loc.push_back(static_cast<std::int32_t>(tokens));
    }
    input.context_lens = context_lens;
    input.query_start_loc = query_start_loc;
    input.workspace_tokens = length_of(record.at("workspace_tokens"));
    input.block_size = length_of(record.at("block_size"));
    input.dcp_size = length_of(record.at("dcp_size"));
    input.interleave = length_of(record.at("interleave"));
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
};

json range(const attn::RequestRange& range) { return {range.first, range.last}; }

/// What upstream has only under context parallelism.
void add_local_fields(json& fields, const attn::MlaContext& context, std::size_t c) {
  const attn::MlaChunk& chunk = context.chunks[c];
  for (const char* field : {"padded_local_seq_lens", "local_context_lens_allranks", "padded_local_cu_seq_lens",
                            "padded_local_token_to_seq", "local_starts"})
    fields[field] = nullptr;
  if (context.local_seq_lens.empty()) return;
  json contexts = json::array();
  for (std::int64_t req = chunk.requests.first; req < chunk.requests.last; ++req)
    contexts.push_back(array_of(context.local_context_lens[req]));
  fields["local_context_lens_allranks"] = contexts;
  fields["padded_local_seq_lens"] = array_of(context.slices_of(c, context.local_seq_lens));
  fields["padded_local_cu_seq_lens"] = array_of(context.offsets_of(c, context.cu_local_seq_lens));
  fields["padded_local_token_to_seq"] = array_of(context.local_token_to_seq.subspan(
      static_cast<std::size_t>(chunk.first_local_token), static_cast<std::size_t>(chunk.num_local_context_tokens)));
  fields["local_starts"] = fields["starts"] = array_of(context.slices_of(c, context.local_starts));
}

/// A chunk with upstream's names. Upstream's starts are those on a rank.
json fields_of(const attn::MlaContext& context, std::size_t c) {
  const attn::MlaChunk& chunk = context.chunks[c];
  const auto lens = context.slices_of(c, context.seq_lens);
  const bool all_active = std::all_of(lens.begin(), lens.end(), [](std::int32_t len) { return len > 0; });
  const auto owners = context.token_to_seq.subspan(static_cast<std::size_t>(chunk.first_token),
                                                   static_cast<std::size_t>(chunk.num_context_tokens));
  json fields{{"index", c},
              {"request_slice", range(chunk.requests)},
              {"token_slice", range(chunk.query_tokens)},
              {"continuation_token_end", chunk.continuation_token_end},
              {"is_continuation", chunk.is_continuation},
              {"num_context_tokens", chunk.num_context_tokens},
              {"query_start_loc", array_of(context.offsets_of(c, context.query_start_loc))},
              {"max_query_len", chunk.max_query_len},
              {"cu_seq_lens", array_of(context.offsets_of(c, context.cu_seq_lens))},
              {"starts", array_of(context.slices_of(c, context.starts))},
              {"max_seq_len", chunk.max_seq_len},
              {"seq_lens", array_of(lens)},
              {"token_to_seq", array_of(owners)},
              {"all_rows_active", all_active},
              {"num_local_context_tokens", chunk.num_local_context_tokens}};
  add_local_fields(fields, context, c);
  return fields;
}

std::optional<std::string> compare_chunk(const json& found, const json& expected, std::size_t index) {
  for (const auto& [field, value] : expected.items()) {
    if (!found.contains(field)) throw std::invalid_argument("unknown field " + field);
    if (found.at(field) != value)
      return fmt::format("chunks[{}].{}: {}, expected {}", index, field, found.at(field).dump(), value.dump());
  }
  return std::nullopt;
}

std::optional<std::string> compare_chunks(const attn::MlaContext& context, const json& expected) {
  if (context.chunks.size() != expected.size())
    return fmt::format("chunks: {}, expected {}", context.chunks.size(), expected.size());
  for (std::size_t index = 0; index < expected.size(); ++index)
    if (auto m = compare_chunk(fields_of(context, index), expected.at(index), index)) return m;
  return std::nullopt;
}

/// The same cuts as chunks of the metadata, all invariants held: the requests as extends, longer than any threshold.
std::optional<std::string> check_dense_chunks(const Recorded& recorded) {
  if (recorded.input.dcp_size > 1) return std::nullopt;  // the metadata's chunks are those of one rank
  batchtext::Step step;
  step.config.decode_threshold = 0;
  step.config.chunk_policy = attn::ChunkPolicy::mla;
  step.config.workspace_tokens = recorded.input.workspace_tokens;
  step.config.chunk_alignment = recorded.input.block_size;
  for (std::size_t i = 0; i < recorded.context_lens.size(); ++i) {
    const std::int32_t query_len = recorded.query_start_loc[i + 1] - recorded.query_start_loc[i];
    const std::int32_t context = recorded.context_lens[i];
    // Without a context, but no prefill.
    step.requests.push_back({query_len, context > 0 ? query_len + context : query_len - 1});
  }
  if (const auto finding = check_case({{step}}))
    return fmt::format("{}: {}: {}", finding->id, finding->where, finding->difference);
  return std::nullopt;
}

/// The query tokens of each request without context.
json empty_token_slices(const Recorded& recorded) {
  json slices = json::array();
  for (std::size_t i = 0; i < recorded.context_lens.size(); ++i)
    if (recorded.context_lens[i] == 0) slices.push_back({recorded.query_start_loc[i], recorded.query_start_loc[i + 1]});
  return slices;
}

}  // namespace

std::optional<std::string> compare_mla_context(const json& record) {
  const Recorded recorded{record};
  attn::MlaContextBuilder builder;
  const auto context = builder.build(recorded.input);
  if (!context) return attn::message(context.error());
  if (auto finding = check_dense_chunks(recorded)) return finding;
  const json& out = record.at("out");
  if (out.is_null())
    return context->chunks.empty() ? std::nullopt : std::optional{fmt::format("{} chunks", context->chunks.size())};
  if (auto m = compare_chunks(*context, out.at("chunks"))) return m;
  for (const auto& [field, found] : {std::pair{"empty_token_slices", empty_token_slices(recorded)},
                                     std::pair{"context_lens", array_of(recorded.context_lens)},
                                     std::pair{"context_lens_list", array_of(recorded.context_lens)}})
    if (found != out.at(field)) return fmt::format("{}: {}, expected {}", field, found.dump(), out.at(field).dump());
  return std::nullopt;
}

}  // namespace properties
