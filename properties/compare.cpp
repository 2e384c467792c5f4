#include "properties/compare.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace properties {

template <class T>
Verdict compare(std::string_view where, std::span<const T> found, std::span<const T> expected) {
  if (found.size() == expected.size() && std::equal(found.begin(), found.end(), expected.begin())) return std::nullopt;
  if (found.size() != expected.size())
    return Difference{std::string{where}, fmt::format("{} entries, expected {}", found.size(), expected.size())};
  const auto [at, other] = std::mismatch(found.begin(), found.end(), expected.begin());
  return Difference{fmt::format("{}[{}]", where, at - found.begin()), fmt::format("{}, expected {}", *at, *other)};
}
template Verdict compare(std::string_view, std::span<const std::int32_t>, std::span<const std::int32_t>);
template Verdict compare(std::string_view, std::span<const std::int64_t>, std::span<const std::int64_t>);

Difference difference(std::string_view where, std::int64_t found, std::int64_t expected) {
  return {std::string{where}, fmt::format("{}, expected {}", found, expected)};
}

Difference difference_at(std::string_view of, std::int64_t index, std::string_view field, std::int64_t found,
                         std::int64_t expected) {
  return difference(fmt::format("{} {}, {}", of, index, field), found, expected);
}

Verdict compare(std::string_view where, const attn::Region& found, const attn::Region& expected) {
  const auto inside = [&](Verdict verdict) {
    if (verdict) verdict->where = fmt::format("{}.{}", where, verdict->where);
    return verdict;
  };
  if (auto v = compare("first_req", found.first_req, expected.first_req)) return inside(v);
  if (auto v = compare("num_reqs", found.num_reqs, expected.num_reqs)) return inside(v);
  if (auto v = compare("num_tokens", found.num_tokens, expected.num_tokens)) return inside(v);
  if (auto v = compare("max_query_len", found.max_query_len, expected.max_query_len)) return inside(v);
  if (auto v = compare("min_query_len", found.min_query_len, expected.min_query_len)) return inside(v);
  if (auto v = compare("max_seq_len", found.max_seq_len, expected.max_seq_len)) return inside(v);
  if (auto v = compare("min_seq_len", found.min_seq_len, expected.min_seq_len)) return inside(v);
  return inside(compare("query_start_loc", found.query_start_loc, expected.query_start_loc));
}

Verdict compare(const attn::ChunkedContext& found, const attn::ChunkedContext& expected) {
  if (auto v = compare("context.num_chunks", found.num_chunks, expected.num_chunks)) return v;
  if (auto v = compare("context.context_lens", found.context_lens, expected.context_lens)) return v;
  if (auto v = compare("context.chunk_starts", found.chunk_starts.data, expected.chunk_starts.data)) return v;
  if (auto v = compare("context.seq_lens", found.seq_lens.data, expected.seq_lens.data)) return v;
  if (auto v = compare("context.cu_seq_lens", found.cu_seq_lens.data, expected.cu_seq_lens.data)) return v;
  if (auto v = compare("context.seq_tot", found.seq_tot, expected.seq_tot)) return v;
  if (auto v = compare("context.max_seq_lens", found.max_seq_lens, expected.max_seq_lens)) return v;
  if (auto v = compare("context.token_start", found.token_start, expected.token_start)) return v;
  return compare("context.token_to_batch", found.token_to_batch_data, expected.token_to_batch_data);
}

Verdict compare(const attn::SlidingWindow& found, const attn::SlidingWindow& expected) {
  if (auto v = compare("window.total_tokens", found.total_tokens, expected.total_tokens)) return v;
  if (auto v = compare("window.max_seq_len", found.max_seq_len, expected.max_seq_len)) return v;
  if (auto v = compare("window.seq_starts", found.seq_starts, expected.seq_starts)) return v;
  if (auto v = compare("window.seq_lens", found.seq_lens, expected.seq_lens)) return v;
  if (auto v = compare("window.cu_seq_lens", found.cu_seq_lens, expected.cu_seq_lens)) return v;
  return compare("window.token_to_batch", found.token_to_batch, expected.token_to_batch);
}

Verdict compare(const attn::Metadata& found, const attn::Metadata& expected) {
  if (auto v = compare("split.num_padding", found.split.num_padding, expected.split.num_padding)) return v;
  if (auto v = compare("split.num_padding_tokens", found.split.num_padding_tokens, expected.split.num_padding_tokens))
    return v;
  if (!(found.split == expected.split)) return Difference{"split", "counts differ"};
  if (auto v = compare("decode", found.decode, expected.decode)) return v;
  if (auto v = compare("extend", found.extend, expected.extend)) return v;
  if (auto v = compare("prefill", found.prefill, expected.prefill)) return v;
  if (auto v = compare("num_kv_tokens", found.num_kv_tokens, expected.num_kv_tokens)) return v;
  if (auto v = compare(found.context, expected.context)) return v;
  if (found.window.has_value() != expected.window.has_value())
    return Difference{"window", found.window ? "present, expected none" : "none, expected one"};
  return found.window ? compare(*found.window, *expected.window) : std::nullopt;
}

Verdict compare(const tl::expected<attn::Metadata, attn::Error>& found,
                const tl::expected<attn::Metadata, attn::Error>& expected) {
  const auto said = [](const auto& built) { return built ? std::string{"metadata"} : attn::message(built.error()); };
  if (found && expected) return compare(*found, *expected);
  if (!found && !expected && found.error() == expected.error()) return std::nullopt;
  return Difference{"build", fmt::format("{}, expected {}", said(found), said(expected))};
}

}  // namespace properties
