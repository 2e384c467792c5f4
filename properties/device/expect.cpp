#include "properties/device/expect.hpp"

#include "properties/compare.hpp"
#include "properties/naive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace properties::device {
namespace {

using Ints = std::span<const std::int32_t>;

/// `found` is `expected`, and behind it there is nothing but zeros.
Verdict compare_with_tail(std::string_view where, Ints found, Ints expected) {
  if (found.size() < expected.size())
    return Difference{std::string{where},
                      fmt::format("{} entries, expected {} at least", found.size(), expected.size())};
  if (auto v = properties::compare(where, found.first(expected.size()), expected)) return v;
  const Ints tail = found.subspan(expected.size());
  const auto stale = std::find_if(tail.begin(), tail.end(), [](std::int32_t value) { return value != 0; });
  if (stale == tail.end()) return std::nullopt;
  return Difference{fmt::format("{}[{}]", where, expected.size() + static_cast<std::size_t>(stale - tail.begin())),
                    fmt::format("{}, expected 0 behind the {} exact entries", *stale, expected.size())};
}

/// A region's offsets are exact; its numbers are those of the host.
Verdict compare_region(std::string_view where, const attn::Region& found, const attn::Region& host,
                       Ints query_start_loc) {
  attn::Region numbers = host;
  numbers.query_start_loc = query_start_loc;
  return properties::compare(where, found, numbers);
}

Verdict compare_scalars(const attn::device::DeviceScalars& found, const Expected& expected) {
  const attn::Metadata& exact = expected.reference;
  const std::array regions{&exact.decode, &exact.extend, &exact.prefill};
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (auto v = compare_at("scalars, region", at, "max_seq_len", found.max_seq_len[i], regions[i]->max_seq_len))
      return v;
    if (auto v = compare_at("scalars, region", at, "min_seq_len", found.min_seq_len[i], regions[i]->min_seq_len))
      return v;
  }
  if (auto v = properties::compare("scalars.num_kv_tokens", found.num_kv_tokens, exact.num_kv_tokens)) return v;
  if (auto v = properties::compare("scalars.num_chunks", found.num_chunks, exact.context.num_chunks)) return v;
  const auto window = exact.window.value_or(attn::SlidingWindow{});
  if (auto v = properties::compare("scalars.window_total_tokens", found.window_total_tokens, window.total_tokens))
    return v;
  if (auto v = properties::compare("scalars.window_max_seq_len", found.window_max_seq_len, window.max_seq_len))
    return v;
  return properties::compare("scalars.num_clamped", found.num_clamped, expected.num_clamped);
}

/// A pass that both have.
Verdict compare_pass(const attn::ChunkedContext& found, const attn::ChunkedContext& exact, std::int64_t chunk) {
  const auto where = [&](const char* field) { return fmt::format("context, chunk {}, {}", chunk, field); };
  if (auto v = properties::compare(where("chunk_starts"), found.chunk_starts[chunk], exact.chunk_starts[chunk]))
    return v;
  if (auto v = properties::compare(where("seq_lens"), found.seq_lens[chunk], exact.seq_lens[chunk])) return v;
  return properties::compare(where("cu_seq_lens"), found.cu_seq_lens[chunk], exact.cu_seq_lens[chunk]);
}

/// A pass that only the bounds made room for. Where its empty slices start is nobody's business.
Verdict check_surplus_pass(const attn::ChunkedContext& found, std::int64_t chunk) {
  const auto is_zero = [](std::int32_t value) { return value == 0; };
  const Ints lens = found.seq_lens[chunk];
  const Ints cumulative = found.cu_seq_lens[chunk];
  if (std::all_of(lens.begin(), lens.end(), is_zero) && std::all_of(cumulative.begin(), cumulative.end(), is_zero))
    return std::nullopt;
  return Difference{fmt::format("context, chunk {}", chunk), "holds tokens, expected an empty pass"};
}

Verdict compare_context(const attn::ChunkedContext& found, const attn::ChunkedContext& host,
                        const attn::ChunkedContext& exact) {
  if (auto v = properties::compare("context.num_chunks", found.num_chunks, host.num_chunks)) return v;
  if (auto v = properties::compare("context.context_lens", found.context_lens, exact.context_lens)) return v;
  const auto chunks = static_cast<std::size_t>(host.num_chunks);
  const std::size_t extends = exact.context_lens.size();
  const auto size = [](std::string_view where, auto span, std::size_t expected) {
    return properties::compare(where, static_cast<std::int64_t>(span.size()), static_cast<std::int64_t>(expected));
  };
  if (auto v = size("entries of context.chunk_starts", found.chunk_starts.data, chunks * extends)) return v;
  if (auto v = size("entries of context.seq_lens", found.seq_lens.data, chunks * extends)) return v;
  if (auto v = size("entries of context.cu_seq_lens", found.cu_seq_lens.data, chunks * (extends + 1))) return v;
  if (auto v = size("entries of context.seq_tot", found.seq_tot, chunks)) return v;
  if (auto v = size("entries of context.max_seq_lens", found.max_seq_lens, chunks)) return v;
  if (auto v = size("entries of context.token_start", found.token_start, chunks + 1)) return v;
  if (auto v = size("entries of context.token_to_batch", found.token_to_batch_data, host.token_to_batch_data.size()))
    return v;
  for (std::int64_t chunk = 0; chunk < found.num_chunks; ++chunk)
    if (auto v = chunk < exact.num_chunks ? compare_pass(found, exact, chunk) : check_surplus_pass(found, chunk))
      return v;
  if (auto v = compare_with_tail("context.seq_tot", found.seq_tot, exact.seq_tot)) return v;
  if (auto v = compare_with_tail("context.max_seq_lens", found.max_seq_lens, exact.max_seq_lens)) return v;
  std::vector<std::int64_t> token_start(exact.token_start.begin(), exact.token_start.end());
  token_start.resize(chunks + 1, token_start.back());
  if (auto v =
          properties::compare("context.token_start", found.token_start, std::span<const std::int64_t>{token_start}))
    return v;
  return compare_with_tail("context.token_to_batch", found.token_to_batch_data, exact.token_to_batch_data);
}

Verdict compare_window(const std::optional<attn::SlidingWindow>& found, const std::optional<attn::SlidingWindow>& host,
                       const std::optional<attn::SlidingWindow>& exact) {
  if (found.has_value() != host.has_value())
    return Difference{"window", found ? "present, expected none" : "none, expected one"};
  if (!found) return std::nullopt;
  if (auto v = properties::compare("window.total_tokens", found->total_tokens, host->total_tokens)) return v;
  if (auto v = properties::compare("window.max_seq_len", found->max_seq_len, host->max_seq_len)) return v;
  if (auto v = properties::compare("window.seq_starts", found->seq_starts, exact->seq_starts)) return v;
  if (auto v = properties::compare("window.seq_lens", found->seq_lens, exact->seq_lens)) return v;
  if (auto v = properties::compare("window.cu_seq_lens", found->cu_seq_lens, exact->cu_seq_lens)) return v;
  if (auto v = properties::compare("entries of window.token_to_batch",
                                   static_cast<std::int64_t>(found->token_to_batch.size()), host->total_tokens))
    return v;
  return compare_with_tail("window.token_to_batch", found->token_to_batch, exact->token_to_batch);
}

/// Lengths of all rows, and where each query token stands in its request; nothing when nobody knows a length.
Verdict compare_rows(const Downloaded& found, const attn::Batch& batch) {
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> positions;
  if (!batch.seq_lens.empty() || !batch.seq_lens_upper_bound.empty()) {
    for (const naive::Row& row : naive::rows_of(batch)) {
      seq_lens.push_back(row.is_padding ? 0 : *row.seq_len);
      for (std::int32_t token = 0; token < row.query_len; ++token) positions.push_back(row.context + token);
    }
    // Surplus tokens belong to no request.
    positions.resize(static_cast<std::size_t>(batch.num_actual_tokens), 0);
  }
  if (auto v = properties::compare("seq_lens", found.seq_lens, Ints{seq_lens})) return v;
  return properties::compare("positions", found.positions, Ints{positions});
}

}  // namespace

Verdict compare(const Downloaded& found, const Expected& expected) {
  const attn::Metadata& metadata = found.metadata;
  const attn::Metadata& host = expected.host;
  const attn::Metadata& exact = expected.reference;
  if (!(metadata.split == host.split)) return Difference{"split", "counts differ"};
  if (auto v = properties::compare("num_kv_tokens", metadata.num_kv_tokens, host.num_kv_tokens)) return v;
  if (auto v = compare_region("decode", metadata.decode, host.decode, exact.decode.query_start_loc)) return v;
  if (auto v = compare_region("extend", metadata.extend, host.extend, exact.extend.query_start_loc)) return v;
  if (auto v = compare_region("prefill", metadata.prefill, host.prefill, exact.prefill.query_start_loc)) return v;
  if (auto v = compare_rows(found, expected.batch)) return v;
  if (auto v = compare_context(metadata.context, host.context, exact.context)) return v;
  if (auto v = compare_window(metadata.window, host.window, exact.window)) return v;
  return compare_scalars(found.scalars, expected);
}

Verdict compare(const Downloaded& found, const Downloaded& expected) {
  if (auto v = properties::compare(found.metadata, expected.metadata)) return v;
  if (auto v = properties::compare("seq_lens", found.seq_lens, expected.seq_lens)) return v;
  if (auto v = properties::compare("positions", found.positions, expected.positions)) return v;
  const auto& a = found.scalars;
  const auto& b = expected.scalars;
  for (int region = 0; region < 3; ++region) {
    if (auto v = compare_at("scalars, region", region, "max_seq_len", a.max_seq_len[region], b.max_seq_len[region]))
      return v;
    if (auto v = compare_at("scalars, region", region, "min_seq_len", a.min_seq_len[region], b.min_seq_len[region]))
      return v;
  }
  if (auto v = properties::compare("scalars.num_kv_tokens", a.num_kv_tokens, b.num_kv_tokens)) return v;
  if (auto v = properties::compare("scalars.num_chunks", a.num_chunks, b.num_chunks)) return v;
  if (auto v = properties::compare("scalars.window_total_tokens", a.window_total_tokens, b.window_total_tokens))
    return v;
  if (auto v = properties::compare("scalars.window_max_seq_len", a.window_max_seq_len, b.window_max_seq_len)) return v;
  return properties::compare("scalars.num_clamped", a.num_clamped, b.num_clamped);
}

}  // namespace properties::device
