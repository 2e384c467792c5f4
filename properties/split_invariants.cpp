#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include "attn/reorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include <sys/mman.h>

namespace properties {
namespace {

using naive::Row;
using naive::RowClass;

/// An array nobody may read: its pages have no access rights, so that a read ends the process on the spot. Made
/// once; no test case leaves anything in it.
std::span<const std::int32_t> untouchable(std::size_t count) {
  constexpr std::size_t most = std::size_t{1} << 20;  // more requests than any text can hold
  static const void* pages = mmap(nullptr, most * sizeof(std::int32_t), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || count > most) std::abort();  // or the invariant would hold unchecked
  return {static_cast<const std::int32_t*>(pages), count};
}

std::string text_of(const attn::DecodePrefillSplit& split) {
  return fmt::format("{} decodes, {} prefills, {} + {} tokens", split.num_decodes, split.num_prefills,
                     split.num_decode_tokens, split.num_prefill_tokens);
}

/// Which of the requests still compute their prompt: any flags will do, so every third length has one.
std::unique_ptr<bool[]> some_flags(const std::vector<Row>& rows) {
  auto flags = std::make_unique<bool[]>(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) flags[i] = (std::int64_t{rows[i].query_len} + rows[i].context) % 3 == 0;
  return flags;
}

/// The split in two by its definition: the first row that is a prefill ends the decodes.
attn::DecodePrefillSplit naive_two_way(const attn::Batch& batch, const std::vector<Row>& rows,
                                       const attn::DecodePrefillRule& rule) {
  const std::int32_t threshold = batch.config.decode_threshold;
  const auto is_long = [&](const Row& row) { return row.query_len > threshold; };
  const bool any_long = std::any_of(rows.begin(), rows.end(), is_long);
  // vLLM returns before it asks for uniform rows when all are short, unless drafts make them differ.
  const bool asks_for_uniform = rule.require_uniform && (any_long || threshold > 1 || !rule.is_prefilling.empty());
  std::size_t num_decodes = 0;
  std::int64_t num_decode_tokens = 0;
  for (; num_decodes < rows.size(); ++num_decodes) {
    const Row& row = rows[num_decodes];
    const bool is_other = row.query_len != 0 && row.query_len != rows[0].query_len;
    if (is_long(row) || (asks_for_uniform && is_other)) break;
    if (!rule.is_prefilling.empty() && rule.is_prefilling[num_decodes]) break;
    num_decode_tokens += row.query_len;
  }
  if (num_decodes == rows.size()) num_decode_tokens = batch.num_actual_tokens;
  return {static_cast<std::int32_t>(num_decodes), static_cast<std::int32_t>(rows.size() - num_decodes),
          static_cast<std::int32_t>(num_decode_tokens),
          static_cast<std::int32_t>(batch.num_actual_tokens - num_decode_tokens)};
}

}  // namespace

Verdict regions_partition_the_batch(const Built& built) {
  const attn::Split& split = built.metadata.split;
  const std::int64_t reqs =
      std::int64_t{split.num_decodes} + split.num_extends + split.num_prefills + split.num_padding;
  const std::int64_t tokens = std::int64_t{split.num_decode_tokens} + split.num_extend_tokens +
                              split.num_prefill_tokens + split.num_padding_tokens;
  if (auto v = compare("sum of region counts and padding", reqs, built.batch.num_reqs)) return v;
  if (auto v = compare("sum of region and padding tokens", tokens, built.batch.num_actual_tokens)) return v;
  std::int64_t surplus = built.batch.num_actual_tokens;
  for (const Row& row : built.rows) surplus -= row.query_len;
  const bool any_long = std::any_of(built.rows.begin(), built.rows.end(), [&](const Row& row) {
    return row.query_len > built.batch.config.decode_threshold;
  });
  if (auto v = compare("num_padding_tokens", split.num_padding_tokens, any_long ? surplus : 0)) return v;
  const auto three_way = attn::split_decodes_extends_prefills(built.batch);
  if (!three_way) return Difference{"split", attn::message(three_way.error()) + ", but the builder built it"};
  if (!(*three_way == split)) return Difference{"split", "differs from the builder's"};
  const struct {
    std::string_view name;
    const attn::Region& region;
    std::int32_t first_req, num_reqs, num_tokens;
  } regions[]{{"decode", built.metadata.decode, 0, split.num_decodes,
               split.num_decode_tokens - static_cast<std::int32_t>(any_long ? 0 : surplus)},
              {"extend", built.metadata.extend, split.num_decodes, split.num_extends, split.num_extend_tokens},
              {"prefill", built.metadata.prefill, split.num_decodes + split.num_extends, split.num_prefills,
               split.num_prefill_tokens}};
  for (const auto& [name, region, first_req, num_reqs, num_tokens] : regions) {
    if (auto v = compare(name, region.first_req, num_reqs > 0 ? first_req : 0)) return v;
    if (auto v = compare(name, region.num_reqs, num_reqs)) return v;
    if (auto v = compare(name, region.num_tokens, num_tokens)) return v;
    if (auto v = compare(name, static_cast<std::int64_t>(region.query_start_loc.size()), num_reqs + std::int64_t{1}))
      return v;
    if (auto v = compare(name, region.query_start_loc.front(), 0)) return v;
    if (auto v = compare(name, region.query_start_loc.back(), num_tokens)) return v;
  }
  return std::nullopt;
}

Verdict decodes_are_short_and_the_next_is_not(const Built& built) {
  const std::int32_t threshold = built.batch.config.decode_threshold;
  const auto num_decodes = static_cast<std::size_t>(built.metadata.split.num_decodes);
  for (std::size_t i = 0; i < num_decodes; ++i)
    if (built.rows[i].query_len > threshold)
      return Difference{fmt::format("request {}", i),
                        fmt::format("is a decode with query_len {}, threshold {}", built.rows[i].query_len, threshold)};
  if (num_decodes < built.rows.size() && built.rows[num_decodes].query_len <= threshold)
    return Difference{
        fmt::format("request {}", num_decodes),
        fmt::format("is no decode with query_len {}, threshold {}", built.rows[num_decodes].query_len, threshold)};
  return std::nullopt;
}

Verdict no_context_stands_behind_the_first_prefill(const Built& built) {
  const attn::Split& split = built.metadata.split;
  const auto first = static_cast<std::size_t>(split.num_decodes + split.num_extends);
  for (std::size_t i = first; i < first + static_cast<std::size_t>(split.num_prefills); ++i) {
    const Row& row = built.rows[i];
    if (row.query_len > 0 && row.class_seq_len.value_or(0) > row.query_len)
      return Difference{fmt::format("request {}", i), fmt::format("is called a prefill, but has {} context tokens",
                                                                  *row.class_seq_len - row.query_len)};
  }
  return std::nullopt;
}

Verdict decode_only_split_reads_no_length(const Built& built) {
  if (built.metadata.split.num_decodes != built.batch.num_reqs) return std::nullopt;
  attn::Batch without = built.batch;
  without.seq_lens = without.seq_lens_upper_bound = {};
  attn::Batch poisoned = built.batch;
  poisoned.seq_lens = poisoned.seq_lens_upper_bound = untouchable(static_cast<std::size_t>(built.batch.num_reqs));
  for (const attn::Batch& batch : {without, poisoned}) {
    const std::string_view where = batch.seq_lens.empty() ? "without lengths" : "with poisoned lengths";
    const auto split = attn::split_decodes_extends_prefills(batch);
    if (!split) return Difference{std::string{where}, attn::message(split.error())};
    if (!(*split == built.metadata.split)) return Difference{std::string{where}, "another split"};
  }
  attn::MetadataBuilder builder{built.max_entries};
  const auto rebuilt = builder.build(without);
  if (!rebuilt) return Difference{"build without lengths", attn::message(rebuilt.error())};
  if (!(rebuilt->split == built.metadata.split)) return Difference{"build without lengths", "another split"};
  return std::nullopt;
}

Verdict two_way_split_counts_leading_decodes(const Built& built) {
  const auto flags = some_flags(built.rows);
  for (const bool require_uniform : {false, true}) {
    for (const bool with_flags : {false, true}) {
      attn::DecodePrefillRule rule{require_uniform, {}};
      if (with_flags) rule.is_prefilling = {flags.get(), built.rows.size()};
      const auto expected = naive_two_way(built.batch, built.rows, rule);
      const auto found = attn::split_decodes_prefills(built.batch, rule);
      const std::string where =
          fmt::format("require_uniform {}, is_prefilling {}", require_uniform, with_flags ? "given" : "not given");
      if (!found) return Difference{where, attn::message(found.error())};
      if (!(*found == expected))
        return Difference{where, fmt::format("{}, expected {}", text_of(*found), text_of(expected))};
    }
  }
  return std::nullopt;
}

Verdict prefill_chunks_are_the_longest_that_fit(const Built& built) {
  const auto seq_lens = built.batch.seq_lens.empty() ? built.batch.seq_lens_upper_bound : built.batch.seq_lens;
  const std::int64_t workspace = built.batch.config.workspace_tokens;
  // A request that is longer than the workspace, or has a stale length, is refused; E2's like for this room.
  const auto bad =
      std::find_if(seq_lens.begin(), seq_lens.end(), [&](std::int32_t len) { return len < 0 || len > workspace; });
  constexpr std::int32_t offset = 3;
  std::vector<attn::RequestRange> chunks(seq_lens.size());
  const auto count = attn::split_prefill_chunks(seq_lens, built.batch.config.workspace_tokens, offset, chunks);
  if (bad != seq_lens.end()) {
    const std::int64_t index = bad - seq_lens.begin();
    const attn::Error expected = *bad < 0 ? attn::Error{attn::Error::negative_seq_len, index, *bad, 0}
                                          : attn::Error{attn::Error::workspace_too_small, index, workspace, *bad};
    if (!count && count.error() == expected) return std::nullopt;
    return Difference{fmt::format("request {}", index), fmt::format("length {} is not refused by its index", *bad)};
  }
  if (!count) return Difference{"prefill chunks", attn::message(count.error())};
  std::size_t next = 0;
  for (std::int32_t c = 0; c < *count; ++c) {
    const attn::RequestRange chunk = chunks[static_cast<std::size_t>(c)];
    if (auto v = compare_at("prefill chunk", c, "first", chunk.first - offset, static_cast<std::int64_t>(next)))
      return v;
    if (chunk.last <= chunk.first) return Difference{fmt::format("prefill chunk {}", c), "is empty"};
    std::int64_t tokens = 0;
    for (; next < static_cast<std::size_t>(chunk.last - offset); ++next) tokens += seq_lens[next];
    if (tokens > workspace)
      return Difference{fmt::format("prefill chunk {}", c), fmt::format("{} tokens, workspace {}", tokens, workspace)};
    if (next < seq_lens.size() && tokens + seq_lens[next] <= workspace)
      return Difference{fmt::format("prefill chunk {}", c), "the next request would fit"};
  }
  return compare("requests in prefill chunks", static_cast<std::int64_t>(next),
                 static_cast<std::int64_t>(seq_lens.size()));
}

namespace {

/// A queue made of the batch's rows, last row first, so that it is out of order.
struct Queue {
  std::vector<std::int32_t> scheduled, computed, prompt;
  std::int32_t threshold = 0;

  Queue(const Built& built, bool with_prompts) : threshold(built.batch.config.decode_threshold) {
    for (auto row = built.rows.rbegin(); row != built.rows.rend(); ++row) {
      scheduled.push_back(row->query_len);
      computed.push_back(row->context);
      // One token below what is computed, as much, or one above.
      const std::int64_t near = std::int64_t{row->context} + row->query_len % 3 - 1;
      if (with_prompts) prompt.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(near, 0, 2147483647)));
    }
  }
  /// The region that a request belongs to: decode, short extend, long extend, prefill.
  [[nodiscard]] int region_of(std::size_t req) const {
    if (computed[req] == 0) return 3;
    if (scheduled[req] > threshold) return 2;
    return !prompt.empty() && computed[req] < prompt[req] ? 1 : 0;
  }
};

Verdict check_order(const Queue& queue) {
  const std::size_t count = queue.scheduled.size();
  std::vector<std::int32_t> order(count, -1);
  const auto modified = attn::reorder_batch(queue.scheduled, queue.computed, queue.prompt, queue.threshold, order);
  if (!modified) return Difference{"reorder", attn::message(modified.error())};

  std::vector<bool> placed(count);
  std::vector<int> sorted(count);
  for (std::size_t i = 0; i < count; ++i) sorted[i] = queue.region_of(i);
  std::sort(sorted.begin(), sorted.end());
  bool moved = false;
  std::vector<std::int32_t> last_moved(4, -1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto req = static_cast<std::size_t>(order[i]);
    const auto position = static_cast<std::int64_t>(i);
    if (req >= count || placed[req])
      return Difference{fmt::format("order[{}]", i), fmt::format("{} is no request or placed twice", order[i])};
    placed[req] = true;
    if (auto v = compare_at("position", position, "region", queue.region_of(req), sorted[i])) return v;
    if (queue.region_of(i) == sorted[i]) {
      if (auto v = compare_at("position", position, "in place already", order[i], position)) return v;
      continue;
    }
    moved = true;
    std::int32_t& last = last_moved[static_cast<std::size_t>(sorted[i])];
    if (order[i] < last)
      return Difference{fmt::format("order[{}]", i),
                        fmt::format("request {} overtakes request {} of its region", order[i], last)};
    last = order[i];
  }
  return compare("modified", *modified, moved);
}

}  // namespace

Verdict reordering_moves_only_the_misplaced(const Built& built) {
  for (const bool with_prompts : {false, true}) {
    auto verdict = check_order(Queue{built, with_prompts});
    if (verdict && with_prompts) verdict->where += ", with prompt lengths";
    if (verdict) return verdict;
  }
  return std::nullopt;
}

}  // namespace properties
