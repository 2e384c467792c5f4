#include "properties/compare.hpp"
#include "properties/invariants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace properties {
namespace {

using Order = std::vector<std::int32_t>;

/// A batch made of other batches' requests, with arrays of its own.
struct Rebuilt {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> seq_lens_upper_bound;
  attn::Batch batch;

  /// Requests `order` of `from`, and its surplus tokens. Scalars that bound every request stay as they are.
  Rebuilt(const attn::Batch& from, std::span<const std::int32_t> order) : batch(from) {
    for (const std::int32_t req : order) {
      const auto i = static_cast<std::size_t>(req);
      // The length first: the sum of lengths fits, an offset added to another need not.
      const std::int32_t query_len = from.query_start_loc[i + 1] - from.query_start_loc[i];
      query_start_loc.push_back(query_start_loc.back() + query_len);
      if (!from.seq_lens.empty()) seq_lens.push_back(from.seq_lens[i]);
      if (!from.seq_lens_upper_bound.empty()) seq_lens_upper_bound.push_back(from.seq_lens_upper_bound[i]);
    }
    batch.num_reqs = static_cast<std::int32_t>(order.size());
    batch.query_start_loc = query_start_loc;
    batch.seq_lens = seq_lens;
    batch.seq_lens_upper_bound = seq_lens_upper_bound;
    const std::int32_t owned = from.query_start_loc.empty() ? 0 : from.query_start_loc.back();
    batch.num_actual_tokens = query_start_loc.back() + (from.num_actual_tokens - owned);
  }

  /// Adds rows without tokens; their lengths are stale numbers of every kind.
  void append_padding(std::int32_t count) {
    constexpr std::int32_t stale[]{12345, -7, 0, 2147483647};
    for (std::int32_t i = 0; i < count; ++i) {
      query_start_loc.push_back(query_start_loc.back());
      if (!seq_lens.empty()) seq_lens.push_back(stale[i % 4]);
      if (!seq_lens_upper_bound.empty()) seq_lens_upper_bound.push_back(stale[(i + 1) % 4]);
    }
    batch.num_reqs += count;
    batch.query_start_loc = query_start_loc;
    batch.seq_lens = seq_lens;
    batch.seq_lens_upper_bound = seq_lens_upper_bound;
  }

  /// Takes a token from the last context of at least two. False when there is none. `metadata` is the batch's.
  bool shorten_a_context(const attn::Metadata& metadata) {
    const auto contexts = metadata.context.context_lens;
    for (std::size_t e = contexts.size(); e-- > 0;) {
      if (contexts[e] < 2) continue;
      std::vector<std::int32_t>& lens = seq_lens.empty() ? seq_lens_upper_bound : seq_lens;
      --lens[static_cast<std::size_t>(metadata.extend.first_req) + e];
      return true;
    }
    return false;
  }
};

Order identity(std::int32_t count) {
  Order order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Requests that are not padding; they stand in front.
std::int32_t count_real(const std::vector<naive::Row>& rows) {
  return static_cast<std::int32_t>(
      std::count_if(rows.begin(), rows.end(), [](const naive::Row& row) { return !row.is_padding; }));
}

/// Turns each region's requests round, but for its first and last: those decide where a region begins and where
/// padding does. Padding stays behind, also where it counts as decodes.
Order turned_round(const attn::Split& split, const std::vector<naive::Row>& rows) {
  Order order = identity(static_cast<std::int32_t>(rows.size()));
  auto begin = order.begin();
  const std::int32_t num_decodes = std::min(split.num_decodes, count_real(rows));
  for (const std::int32_t count : {num_decodes, split.num_extends, split.num_prefills}) {
    if (count > 3) std::reverse(begin + 1, begin + count - 1);
    begin += count;
  }
  return order;
}

std::int64_t sum(std::span<const std::int32_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// `found[i]` is `expected[source[i]]`, for the entries of one region.
Verdict compare_permuted(std::string_view where, std::span<const std::int32_t> found,
                         std::span<const std::int32_t> expected, const Order& order, std::int32_t first) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto source = static_cast<std::size_t>(order[static_cast<std::size_t>(first) + i] - first);
    if (found[i] != expected[source])
      return Difference{fmt::format("{}[{}]", where, i),
                        fmt::format("{}, expected entry {} of before: {}", found[i], source, expected[source])};
  }
  return std::nullopt;
}

Verdict compare_region_numbers(std::string_view where, const attn::Region& found, const attn::Region& expected) {
  attn::Region numbers = found;
  numbers.query_start_loc = expected.query_start_loc;  // permuted; S1 judges it
  return compare(where, numbers, expected);
}

Verdict compare_permuted_context(const attn::ChunkedContext& found, const attn::ChunkedContext& expected,
                                 const Order& order, std::int32_t first, const attn::Config& config) {
  if (auto v = compare_permuted("context_lens", found.context_lens, expected.context_lens, order, first)) return v;
  // Where a slice depends on who stands before it, C1 to C4 judge it.
  if (config.chunk_policy == attn::ChunkPolicy::mla) return std::nullopt;
  if (auto v = compare("num_chunks", found.num_chunks, expected.num_chunks)) return v;
  const bool packed = config.chunk_policy == attn::ChunkPolicy::packed;
  if (packed && config.chunk_alignment > 1) return std::nullopt;
  if (auto v = compare("seq_tot", found.seq_tot, expected.seq_tot)) return v;
  if (packed) return std::nullopt;
  for (std::int64_t chunk = 0; chunk < found.num_chunks; ++chunk) {
    if (auto v =
            compare_permuted("chunk_starts", found.chunk_starts[chunk], expected.chunk_starts[chunk], order, first))
      return v;
    if (auto v = compare_permuted("seq_lens", found.seq_lens[chunk], expected.seq_lens[chunk], order, first)) return v;
  }
  return compare("max_seq_lens", found.max_seq_lens, expected.max_seq_lens);
}

/// Where a batch can be cut so that no request's class changes: both parts have real rows, the front ends with one, and
/// the rest starts with a request that alone decides its region. -1: nowhere.
std::int32_t find_cut(const Built& built) {
  const attn::Split& split = built.metadata.split;
  const std::int32_t first_prefill = split.num_decodes + split.num_extends;
  const std::int32_t end = count_real(built.rows);
  for (std::int32_t cut = std::max(built.batch.num_reqs / 2, 1); cut < end; ++cut) {
    const auto at = static_cast<std::size_t>(cut);
    const naive::Row& row = built.rows[at];
    if (built.rows[at - 1].query_len == 0) continue;
    const bool decides = row.query_len > built.batch.config.decode_threshold &&
                         (cut < first_prefill || row.class_seq_len == row.query_len);
    if (cut <= split.num_decodes || decides) return cut;
  }
  return -1;
}

Verdict compare_concatenated(std::string_view where, std::span<const std::int32_t> front,
                             std::span<const std::int32_t> back, std::span<const std::int32_t> whole) {
  std::vector<std::int32_t> both(front.begin(), front.end());
  both.insert(both.end(), back.begin(), back.end());
  return compare(where, std::span<const std::int32_t>{both}, whole);
}

/// A region's numbers over two parts; a part without requests says nothing.
Verdict compare_cut_region(std::string_view name, const attn::Region& front, const attn::Region& back,
                           const attn::Region& whole) {
  attn::Region both = front.num_reqs > 0 ? front : back;
  if (front.num_reqs > 0 && back.num_reqs > 0) {
    both.num_reqs += back.num_reqs;
    both.num_tokens += back.num_tokens;
    both.max_query_len = std::max(front.max_query_len, back.max_query_len);
    both.min_query_len = std::min(front.min_query_len, back.min_query_len);
    both.max_seq_len = std::max(front.max_seq_len, back.max_seq_len);
    both.min_seq_len = std::min(front.min_seq_len, back.min_seq_len);
  }
  both.first_req = whole.first_req;
  std::vector<std::int32_t> offsets(front.query_start_loc.begin(), front.query_start_loc.end());
  for (std::size_t i = 1; i < back.query_start_loc.size(); ++i)
    offsets.push_back(offsets.front() + front.num_tokens + back.query_start_loc[i]);
  both.query_start_loc = offsets;
  return compare(name, both, whole);
}

/// Extends with context, prefills, a window, decodes: something in every array, to be left over for the next batch.
attn::Batch dirty_batch() {
  static constexpr std::int32_t query_start_loc[]{0, 1, 2, 12, 22, 32, 42, 62};
  static constexpr std::int32_t seq_lens[]{70, 71, 40, 150, 61, 10, 20};
  attn::Batch batch;
  batch.num_reqs = 7;
  batch.query_start_loc = query_start_loc;
  batch.seq_lens = seq_lens;
  batch.num_actual_tokens = 62;
  batch.max_query_len = 20;
  batch.max_seq_len = 150;
  batch.config.workspace_tokens = 64;
  batch.config.window_left = 50;
  return batch;
}

}  // namespace

Verdict padding_changes_no_token_count(const Built& built) {
  const std::int32_t count = 1 + built.batch.num_reqs % 3;
  Rebuilt padded{built.batch, identity(built.batch.num_reqs)};
  padded.append_padding(count);
  attn::MetadataBuilder builder{built.max_entries + 4 * count};
  const auto rebuilt = builder.build(padded.batch);
  if (!rebuilt) return Difference{"padded build", attn::message(rebuilt.error())};
  attn::Split expected = built.metadata.split;
  const bool decode_only = expected.num_decodes == built.batch.num_reqs;
  (decode_only ? expected.num_decodes : expected.num_padding) += count;
  if (!(rebuilt->split == expected)) return Difference{"padded split", "more than the count of padding changed"};
  if (auto v = compare("num_kv_tokens", rebuilt->num_kv_tokens, built.metadata.num_kv_tokens)) return v;
  // Rows of nothing but padding have no length, and get the scalar where the batch has none either.
  if (built.metadata.decode.num_reqs > 0)
    if (auto v = compare("decode.max_seq_len", rebuilt->decode.max_seq_len, built.metadata.decode.max_seq_len))
      return v;
  if (auto v = compare("extend", rebuilt->extend, built.metadata.extend)) return v;
  if (auto v = compare("prefill", rebuilt->prefill, built.metadata.prefill)) return v;
  return compare(rebuilt->context, built.metadata.context);
}

Verdict permuting_requests_permutes_entries(const Built& built) {
  const attn::Split& split = built.metadata.split;
  const Order order = turned_round(split, built.rows);
  if (std::is_sorted(order.begin(), order.end())) return std::nullopt;
  const Rebuilt permuted{built.batch, order};
  attn::MetadataBuilder builder{built.max_entries};
  const auto found = builder.build(permuted.batch);
  if (!found) return Difference{"permuted build", attn::message(found.error())};
  const attn::Metadata& expected = built.metadata;
  if (!(found->split == split)) return Difference{"permuted split", "differs"};
  if (auto v = compare_region_numbers("decode", found->decode, expected.decode)) return v;
  if (auto v = compare_region_numbers("extend", found->extend, expected.extend)) return v;
  if (auto v = compare_region_numbers("prefill", found->prefill, expected.prefill)) return v;
  if (auto v = compare("num_kv_tokens", found->num_kv_tokens, expected.num_kv_tokens)) return v;
  const std::int32_t first = split.num_decodes;
  if (auto v = compare_permuted_context(found->context, expected.context, order, first, built.batch.config)) return v;
  if (!expected.window) return std::nullopt;
  if (auto v =
          compare_permuted("window.seq_starts", found->window->seq_starts, expected.window->seq_starts, order, first))
    return v;
  return compare_permuted("window.seq_lens", found->window->seq_lens, expected.window->seq_lens, order, first);
}

Verdict a_cut_batch_agrees_with_the_whole(const Built& built) {
  const std::int32_t cut = find_cut(built);
  if (cut < 0) return std::nullopt;
  const Order all = identity(built.batch.num_reqs);
  const auto middle = static_cast<std::size_t>(cut);
  Rebuilt front{built.batch, std::span{all}.first(middle)};
  front.batch.num_actual_tokens = front.query_start_loc.back();  // the surplus comes after the last request
  const Rebuilt back{built.batch, std::span{all}.subspan(middle)};
  attn::MetadataBuilder front_builder{built.max_entries};
  attn::MetadataBuilder back_builder{built.max_entries};
  const auto first = front_builder.build(front.batch);
  const auto second = back_builder.build(back.batch);
  const attn::Metadata& whole = built.metadata;
  // Fewer extends have larger shares, and so fewer passes, but never more entries than the whole.
  if (!first) return Difference{fmt::format("front, cut at request {}", cut), attn::message(first.error())};
  if (!second) return Difference{fmt::format("back, cut at request {}", cut), attn::message(second.error())};
  if (auto v = compare_cut_region("decode of both parts", first->decode, second->decode, whole.decode)) return v;
  if (auto v = compare_cut_region("extend of both parts", first->extend, second->extend, whole.extend)) return v;
  if (auto v = compare_cut_region("prefill of both parts", first->prefill, second->prefill, whole.prefill)) return v;
  if (auto v = compare("num_padding of both parts", first->split.num_padding + second->split.num_padding,
                       whole.split.num_padding))
    return v;
  if (auto v = compare("num_decode_tokens of both parts",
                       std::int64_t{first->split.num_decode_tokens} + second->split.num_decode_tokens,
                       whole.split.num_decode_tokens))
    return v;
  if (auto v =
          compare("num_padding_tokens of both parts", second->split.num_padding_tokens, whole.split.num_padding_tokens))
    return v;
  if (auto v =
          compare("num_kv_tokens of both parts", first->num_kv_tokens + second->num_kv_tokens, whole.num_kv_tokens))
    return v;
  if (auto v = compare_concatenated("context_lens of both parts", first->context.context_lens,
                                    second->context.context_lens, whole.context.context_lens))
    return v;
  if (auto v = compare("context tokens gathered by both parts",
                       sum(first->context.seq_tot) + sum(second->context.seq_tot), sum(whole.context.seq_tot)))
    return v;
  if (!whole.window) return std::nullopt;
  if (auto v = compare_concatenated("window.seq_starts of both parts", first->window->seq_starts,
                                    second->window->seq_starts, whole.window->seq_starts))
    return v;
  return compare_concatenated("window.seq_lens of both parts", first->window->seq_lens, second->window->seq_lens,
                              whole.window->seq_lens);
}

Verdict doubling_the_workspace_keeps_the_context(const Built& built) {
  attn::Batch doubled = built.batch;
  doubled.config.workspace_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(std::int64_t{2} * built.batch.config.workspace_tokens, 2147483647));
  attn::MetadataBuilder builder{built.max_entries};
  const auto found = builder.build(doubled);
  if (!found) return Difference{"build with twice the workspace", attn::message(found.error())};
  if (found->context.num_chunks > built.metadata.context.num_chunks)
    return Difference{
        "num_chunks with twice the workspace",
        fmt::format("{}, with the single one {}", found->context.num_chunks, built.metadata.context.num_chunks)};
  const Built twice{doubled, *found, built.rows, built.contexts, built.max_entries};
  auto verdict = every_context_token_is_gathered_once(twice);
  if (!verdict) verdict = no_chunk_exceeds_the_workspace(twice);
  if (verdict) verdict->where += ", with twice the workspace";
  return verdict;
}

Verdict leftovers_never_reach_the_next_batch(const Built& built) {
  attn::MetadataBuilder used{built.max_entries};
  // What this first build says does not matter, only what it leaves behind.
  static_cast<void>(used.build(dirty_batch()));
  const auto again = used.build(built.batch);
  if (!again) return Difference{"build on a used builder", attn::message(again.error())};
  return compare(*again, built.metadata);
}

Verdict builds_stay_within_their_memory(const Built& built) {
  const attn::Batch& batch = built.batch;
  // A builder that has just enough memory for a little less: one context token or, where there is none, one request.
  Rebuilt smaller{batch, identity(batch.num_reqs)};
  if (!smaller.shorten_a_context(built.metadata)) smaller = Rebuilt{batch, identity(std::max(batch.num_reqs - 1, 0))};
  attn::MetadataBuilder builder{built.max_entries};
  // What it says does not matter.
  static_cast<void>(builder.build(smaller.batch));
  const auto again = builder.build(batch);
  if (!again) return Difference{"build on a builder that is warm", attn::message(again.error())};
  return compare(*again, built.metadata);
}

}  // namespace properties
