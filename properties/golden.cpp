#include "properties/golden.hpp"

#include "properties/check.hpp"
#include "properties/golden_mla.hpp"

#include "attn/context_parallel.hpp"
#include "attn/local_attention.hpp"
#include "attn/metadata.hpp"
#include "attn/reorder.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace properties {
namespace {

using json = nlohmann::json;
using Mismatch = std::optional<std::string>;
using Ints = std::vector<std::int32_t>;

Mismatch differ(std::string_view field, const json& found, const json& expected) {
  if (found == expected) return std::nullopt;
  return fmt::format("{}: {}, expected {}", field, found.dump(), expected.dump());
}

/// Numbers as they stand in the file: nlohmann-json would cut a fraction or a longer number to fit.
std::int32_t int32_of(const json& value) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < -2147483648 || value.get<std::int64_t>() > 2147483647 ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > 2147483647))
    throw std::invalid_argument(value.dump() + " is no int32");
  return value.get<std::int32_t>();
}

Ints ints_of(const json& values) {
  if (!values.is_array()) throw std::invalid_argument(values.dump() + " is no array");
  Ints ints;
  for (const json& value : values) ints.push_back(int32_of(value));
  return ints;
}

json array_of(std::span<const std::int32_t> values) { return json(Ints(values.begin(), values.end())); }

json rows_of(const attn::Rows<const std::int32_t>& rows, std::int64_t count) {
  json array = json::array();
  for (std::int64_t row = 0; row < count; ++row) array.push_back(array_of(rows[row]));
  return array;
}

batchtext::Step step_of(const json& record) {
  const auto query_lens = ints_of(record.at("query_lens"));
  const auto seq_lens = ints_of(record.at("seq_lens"));
  if (query_lens.size() != seq_lens.size()) throw std::invalid_argument("query_lens and seq_lens differ in size");
  batchtext::Step step;
  step.config.decode_threshold = int32_of(record.at("decode_threshold"));
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < query_lens.size(); ++i) {
    if (query_lens[i] < 0 || seq_lens[i] < 0) throw std::invalid_argument("negative length");
    tokens += query_lens[i];
    step.requests.push_back({query_lens[i], seq_lens[i]});
  }
  if (tokens > 2147483647 || static_cast<std::int64_t>(query_lens.size()) > batchtext::max_requests)
    throw std::invalid_argument("batch beyond the limits of the text form");
  return step;
}

/// The step's own token count, where the record has one: above the last offset it is that of a captured size.
void read_token_count(const json& record, batchtext::Step& step) {
  if (record.contains("num_actual_tokens")) step.num_actual_tokens = int32_of(record.at("num_actual_tokens"));
}

// ---- build ----------------------------------------------------------------------------------------------------------

/// Compares a field that not every release has.
Mismatch differ_if_present(std::string_view region, const char* field, const json& found, const json& expected) {
  if (!expected.contains(field)) return std::nullopt;
  return differ(fmt::format("{}.{}", region, field), found, expected.at(field));
}

Mismatch compare_region(const attn::Region& region, const char* name, const json& out) {
  if (region.num_reqs == 0)
    return out.contains(name) ? Mismatch{fmt::format("{}: empty, expected some", name)} : std::nullopt;
  if (!out.contains(name)) return fmt::format("{}: {} requests, expected none", name, region.num_reqs);
  const json& expected = out.at(name);
  if (auto m = differ(fmt::format("{}.max_q", name), region.max_query_len, expected.at("max_q"))) return m;
  if (auto m = differ_if_present(name, "min_q", region.min_query_len, expected)) return m;
  if (auto m = differ_if_present(name, "max_s", region.max_seq_len, expected)) return m;
  return differ_if_present(name, "qsl", array_of(region.query_start_loc), expected);
}

Mismatch compare_context(const attn::ChunkedContext& context, const json& expected) {
  if (auto m = differ("num_chunks", context.num_chunks, expected.at("num_chunks"))) return m;
  const std::int64_t chunks = context.num_chunks;
  if (auto m = differ("chunk_starts", rows_of(context.chunk_starts, chunks), expected.at("chunk_starts"))) return m;
  if (auto m = differ("cu", rows_of(context.cu_seq_lens, chunks), expected.at("cu"))) return m;
  if (auto m = differ_if_present("extend", "lens", rows_of(context.seq_lens, chunks), expected)) return m;
  if (auto m = differ("seq_tot", array_of(context.seq_tot), expected.at("seq_tot"))) return m;
  if (auto m = differ("max_seq_lens", array_of(context.max_seq_lens), expected.at("max_seq_lens"))) return m;
  json owners = json::array();
  for (std::int32_t chunk = 0; chunk < context.num_chunks; ++chunk)
    owners.push_back(array_of(context.token_to_batch(chunk)));
  return differ("token_to_batch", owners, expected.at("token_to_batch"));
}

Mismatch compare_window(const std::optional<attn::SlidingWindow>& window, const json& extend) {
  const bool expected = extend.contains("swa") && !extend.at("swa").is_null();
  if (window.has_value() != expected) return fmt::format("swa: {}", expected ? "missing" : "not expected");
  if (!window) return std::nullopt;
  const json& swa = extend.at("swa");
  if (auto m = differ_if_present("swa", "lens", array_of(window->seq_lens), swa)) return m;
  if (auto m = differ("swa.cu", array_of(window->cu_seq_lens), swa.at("cu"))) return m;
  if (auto m = differ("swa.starts", array_of(window->seq_starts), swa.at("starts"))) return m;
  if (auto m = differ("swa.token_to_batch", array_of(window->token_to_batch), swa.at("token_to_batch"))) return m;
  if (auto m = differ("swa.max", window->max_seq_len, swa.at("max"))) return m;
  return differ("swa.total", window->total_tokens, swa.at("total"));
}

/// Upstream's last number is what the other two leave of num_actual_tokens: surplus tokens are in it.
json counts_of(const attn::Split& split) {
  return {split.num_decodes,       split.num_extends,       split.num_prefills,
          split.num_decode_tokens, split.num_extend_tokens, split.num_prefill_tokens + split.num_padding_tokens};
}

/// What the library has no place for: the decodes' own window, and layers that share another layer's keys and values.
std::vector<std::string_view> fields_left_out(const json& record) {
  std::vector<std::string_view> fields;
  const json out = record.value("out", json::object());
  if (out.contains("decode") && out.at("decode").contains("swa") && !out.at("decode").at("swa").is_null())
    fields.emplace_back("decode.swa");
  if (out.contains("kv_sharing")) fields.emplace_back("kv_sharing");
  return fields;
}

/// Upstream takes a context that stands behind the first prefill for none; the contract names the request.
Mismatch compare_unordered(const tl::expected<attn::Metadata, attn::Error>& built, const json& record) {
  if (built) return "built, expected the error unordered";
  if (built.error().kind != attn::Error::unordered) return attn::message(built.error()) + ", expected unordered";
  const json& split = record.at("out").at("split");
  return differ("first prefill", built.error().limit,
                split.at(0).get<std::int64_t>() + split.at(1).get<std::int64_t>());
}

Mismatch compare_raised(const tl::expected<attn::Metadata, attn::Error>& built, const std::string& raised) {
  // Upstream divides by a share of 0, or counts a negative number of chunks where a context is negative.
  if (raised == "ZeroDivisionError") {
    if (!built && built.error().kind == attn::Error::workspace_too_small) return std::nullopt;
    return built && built->context.num_chunks == 0 ? Mismatch{} : "expected workspace_too_small, or no chunk";
  }
  if (raised != "RuntimeError") throw std::invalid_argument("unknown exception " + raised);
  return built ? Mismatch{} : attn::message(built.error()) + ", expected metadata";
}

Mismatch compare_answers(const attn::Metadata& built, const json& out) {
  if (auto m = differ("split", counts_of(built.split), out.at("split"))) return m;
  if (auto m = compare_region(built.decode, "decode", out)) return m;
  if (auto m = compare_region(built.prefill, "prefill", out)) return m;
  if (auto m = compare_region(built.extend, "extend", out)) return m;
  if (out.contains("num_actual_kv_tokens"))
    if (auto m = differ("num_actual_kv_tokens", built.num_kv_tokens, out.at("num_actual_kv_tokens"))) return m;
  if (built.extend.num_reqs == 0) return std::nullopt;
  if (auto m = compare_context(built.context, out.at("extend"))) return m;
  return compare_window(built.window, out.at("extend"));
}

GoldenOutcome compare_build(const json& record) {
  batchtext::Step step = step_of(record);
  read_token_count(record, step);
  step.config.workspace_tokens = int32_of(record.at("workspace_tokens"));
  if (!record.at("window_left").is_null()) step.config.window_left = int32_of(record.at("window_left"));
  const batchtext::Arrays arrays{step};
  attn::MetadataBuilder builder;
  const auto built = builder.build(arrays.batch());
  GoldenOutcome outcome;
  outcome.left_out = fields_left_out(record);
  if (!built && !record.contains("raises")) outcome.refused = built.error();
  // Whatever upstream says: the contract holds.
  if (const auto finding = check_case({{step}}))
    outcome.mismatch = fmt::format("{}: {}: {}", finding->id, finding->where, finding->difference);
  else if (record.contains("raises"))
    outcome.mismatch = compare_raised(built, record.at("raises").get<std::string>());
  else if (record.value("unordered", false))
    outcome.mismatch = compare_unordered(built, record);
  else
    outcome.mismatch = built ? compare_answers(*built, record.at("out")) : attn::message(built.error());
  return outcome;
}

GoldenOutcome refused(const attn::Error& error) {
  GoldenOutcome outcome;
  outcome.mismatch = attn::message(error);
  outcome.refused = error;
  return outcome;
}

GoldenOutcome differing(Mismatch mismatch) {
  GoldenOutcome outcome;
  outcome.mismatch = std::move(mismatch);
  return outcome;
}

// ---- the other functions --------------------------------------------------------------------------------------------

/// Whether a record of the two-way split is answered by a rule that vLLM has changed since: up to 0.30, rows that have
/// to be uniform ended at the first empty one; now empty rows among them are skipped.
bool stops_at_an_empty_row(const json& record, const std::vector<batchtext::Request>& requests) {
  if (record.contains("treat_short_extends_as_decodes") || !record.at("require_uniform").get<bool>()) return false;
  const auto num_decodes = record.at("out").at(0).get<std::size_t>();
  return num_decodes > 0 && num_decodes < requests.size() && requests[num_decodes].query_len == 0;
}

std::unique_ptr<bool[]> flags_of(const json& record, std::size_t count) {
  const json& given = record.at("is_prefilling");
  if (given.size() != count) throw std::invalid_argument("is_prefilling and query_lens differ in size");
  auto flags = std::make_unique<bool[]>(count);
  for (std::size_t i = 0; i < count; ++i) flags[i] = given.at(i).get<bool>();
  return flags;
}

GoldenOutcome compare_two_way(const json& record) {
  batchtext::Step step = step_of(record);
  read_token_count(record, step);
  const batchtext::Arrays arrays{step};
  attn::DecodePrefillRule rule{record.at("require_uniform").get<bool>(), {}};
  std::unique_ptr<bool[]> flags;
  if (!record.value("treat_short_extends_as_decodes", true)) {
    flags = flags_of(record, step.requests.size());
    rule.is_prefilling = {flags.get(), step.requests.size()};
  }
  const auto split = attn::split_decodes_prefills(arrays.batch(), rule);
  GoldenOutcome outcome;
  if (!split) {
    outcome.mismatch = attn::message(split.error());
    if (!record.contains("raises")) outcome.refused = split.error();
    return outcome;
  }
  // Releases before 0.20 assert that a padded uniform batch counts its padding as tokens; since then it is answered.
  if (record.contains("raises") && record.at("raises") != "AssertionError")
    throw std::invalid_argument("unknown exception " + record.at("raises").dump());
  const json found{split->num_decodes, split->num_prefills, split->num_decode_tokens, split->num_prefill_tokens};
  if (record.contains("raises")) {
    outcome.mismatch = differ("out", found, {arrays.batch().num_reqs, 0, arrays.batch().num_actual_tokens, 0});
    return outcome;
  }
  outcome.mismatch = differ("out", found, record.at("out"));
  if (stops_at_an_empty_row(record, step.requests))
    outcome.superseded = "since 0.31 empty rows among uniform decodes are skipped";
  return outcome;
}

GoldenOutcome compare_prefill_chunks(const json& record) {
  const auto seq_lens = ints_of(record.at("seq_lens"));
  std::vector<attn::RequestRange> chunks(seq_lens.size());
  const auto count = attn::split_prefill_chunks(seq_lens, int32_of(record.at("workspace_tokens")),
                                                int32_of(record.at("request_offset")), chunks);
  if (!count) return refused(count.error());
  json found = json::array();
  for (std::int32_t c = 0; c < *count; ++c)
    found.push_back({chunks[static_cast<std::size_t>(c)].first, chunks[static_cast<std::size_t>(c)].last});
  return differing(differ("out", found, record.at("out")));
}

GoldenOutcome compare_reorder(const json& record) {
  const auto scheduled = ints_of(record.at("num_scheduled_tokens"));
  const auto computed = ints_of(record.at("num_computed_tokens"));
  const auto prompt = ints_of(record.value("num_prompt_tokens", json::array()));
  Ints order(scheduled.size());
  const auto modified =
      attn::reorder_batch(scheduled, computed, prompt, int32_of(record.at("decode_threshold")), order);
  if (!modified) return refused(modified.error());
  if (auto m = differ("modified", *modified, record.at("modified"))) return differing(std::move(m));
  return differing(differ("order", array_of(order), record.at("order")));
}

GoldenOutcome compare_local_attention(const json& record) {
  const auto query_lens = ints_of(record.at("query_lens"));
  const auto seq_lens = ints_of(record.at("seq_lens"));
  Ints offsets{0};
  std::int64_t tokens = 0;
  for (const std::int32_t query_len : query_lens) {
    tokens += query_len;
    if (query_len < 0 || tokens > 2147483647) throw std::invalid_argument("query_lens leave int32");
    offsets.push_back(static_cast<std::int32_t>(tokens));
  }
  Ints blocks;
  std::int64_t num_cols = 0;
  for (const json& row : record.at("block_table")) {
    const auto columns = ints_of(row);
    if (!blocks.empty() && num_cols != std::ssize(columns)) throw std::invalid_argument("block_table is ragged");
    num_cols = std::ssize(columns);
    blocks.insert(blocks.end(), columns.begin(), columns.end());
  }
  attn::LocalAttentionInput input;
  input.attn_chunk_size = int32_of(record.at("attn_chunk_size"));
  input.block_size = int32_of(record.at("block_size"));
  input.query_start_loc = offsets;
  input.seq_lens = seq_lens;
  input.block_table = {blocks, num_cols};
  attn::LocalAttentionBuilder builder;
  const auto local = builder.build(input);
  if (!local) return refused(local.error());
  const json& out = record.at("out");
  if (auto m = differ("cu_seqlens_q", array_of(local->cu_seqlens_q), out.at("cu_seqlens_q")))
    return differing(std::move(m));
  if (auto m = differ("seqlens_k", array_of(local->seqlens_k), out.at("seqlens_k"))) return differing(std::move(m));
  if (auto m = differ("k_starts", array_of(local->k_starts), out.at("k_starts"))) return differing(std::move(m));
  return differing(differ("block_table",
                          rows_of(local->block_table, static_cast<std::int64_t>(local->seqlens_k.size())),
                          out.at("block_table")));
}

GoldenOutcome compare_context_parallel(const json& record) {
  const auto seq_lens = ints_of(record.at("seq_lens"));
  const auto dcp_size = int32_of(record.at("dcp_size"));
  if (dcp_size < 0 || record.at("out").size() != static_cast<std::size_t>(dcp_size))
    throw std::invalid_argument("out has not dcp_size entries");
  json found = json::array();
  for (std::int32_t rank = 0; rank < dcp_size; ++rank) {
    Ints local(seq_lens.size());
    const auto done = attn::dcp_local_seq_lens(seq_lens, dcp_size, rank, int32_of(record.at("interleave")), local);
    if (!done) return refused(done.error());
    found.push_back(array_of(local));
  }
  return differing(differ("out", found, record.at("out")));
}

GoldenOutcome compare_mla(const json& record) { return differing(compare_mla_context(record)); }

struct Comparison {
  std::string_view function;
  GoldenOutcome (*compare)(const json&);
};
constexpr std::array comparisons{Comparison{"build", compare_build},
                                 Comparison{"split_decodes_and_prefills", compare_two_way},
                                 Comparison{"split_prefill_chunks", compare_prefill_chunks},
                                 Comparison{"reorder", compare_reorder},
                                 Comparison{"local_attention", compare_local_attention},
                                 Comparison{"dcp_local_seq_lens", compare_context_parallel},
                                 Comparison{"mla_chunked_context", compare_mla}};

}  // namespace

tl::expected<GoldenOutcome, std::string> compare_golden(std::string_view line) {
  // nlohmann-json takes a byte of 0 for the end of the text.
  if (line.find('\0') != std::string_view::npos) return tl::unexpected(std::string{"a byte of 0"});
  // nlohmann-json reports through exceptions what does not have the shape asked for.
  try {
    const json record = json::parse(line);
    const auto function = record.at("fn").get<std::string>();
    for (const auto& [name, compare] : comparisons)
      if (name == function) {
        GoldenOutcome outcome = compare(record);
        outcome.function = function;
        return outcome;
      }
    return tl::unexpected(fmt::format("unknown function '{}'", function));
  } catch (const std::exception& error) {
    return tl::unexpected(std::string{error.what()});
  }
}

}  // namespace properties
