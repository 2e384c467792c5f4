#include "attn/metadata.hpp"

#include "attn/checked.hpp"

#include <algorithm>

namespace attn {
namespace {

/// All that is decided before the first entry is written.
struct Plan {
  Split split;
  ChunkPlan chunks;
  std::optional<std::int32_t> window_tokens;

  [[nodiscard]] std::int64_t num_entries() const noexcept {
    return std::int64_t{split.num_decodes} + split.num_extends + split.num_prefills + 3 + chunks.num_entries() +
           (window_tokens ? window_entries(split.num_extends, *window_tokens) : 0);
  }
  [[nodiscard]] std::int64_t num_bytes() const noexcept {
    const auto offsets = [](std::int64_t num_reqs) { return Arena::bytes_for<std::int32_t>(num_reqs + 1); };
    return offsets(split.num_decodes) + offsets(split.num_extends) + offsets(split.num_prefills) + chunks.num_bytes() +
           (window_tokens ? window_bytes(split.num_extends, *window_tokens) : 0);
  }
};

tl::expected<Plan, Error> make_plan(const Batch& batch) noexcept {
  if (auto error = check_offsets(batch)) return tl::unexpected(*error);
  if (auto error = check_lengths(batch)) return tl::unexpected(*error);
  Plan plan;
  const auto split = split_checked(batch);
  if (!split) return tl::unexpected(split.error());
  plan.split = *split;

  const auto chunks = plan_chunks(batch, split->num_decodes, split->num_extends);
  if (!chunks) return tl::unexpected(chunks.error());
  plan.chunks = *chunks;

  if (batch.config.window_left) {
    const auto window_tokens = count_window_tokens(batch, split->num_decodes, split->num_extends);
    if (!window_tokens) return tl::unexpected(window_tokens.error());
    plan.window_tokens = *window_tokens;
  }
  return plan;
}

/// Longest and shortest of the region's requests that have a length; see Region for what stands in for one.
void fill_seq_len_bounds(const Batch& batch, std::int32_t num_unpadded, Region& region) noexcept {
  const auto seq_lens = batch.best_seq_lens();
  if (seq_lens.empty()) {
    region.max_seq_len = batch.max_seq_len;
    return;
  }
  const std::int32_t end = std::min(region.first_req + region.num_reqs, num_unpadded);
  if (end <= region.first_req) return;
  const auto lens =
      seq_lens.subspan(static_cast<std::size_t>(region.first_req), static_cast<std::size_t>(end - region.first_req));
  std::int32_t longest = lens[0];
  std::int32_t shortest = lens[0];
  for (const std::int32_t len : lens) {
    longest = std::max(longest, len);
    shortest = std::min(shortest, len);
  }
  region.max_seq_len = longest;
  region.min_seq_len = batch.seq_lens.empty() ? 0 : shortest;
}

Region write_region(const Batch& batch, std::int32_t num_unpadded, std::int32_t first_req, std::int32_t num_reqs,
                    Arena& arena) noexcept {
  Region region;
  const auto offsets = arena.take<std::int32_t>(num_reqs + std::int64_t{1});
  offsets[0] = 0;
  region.query_start_loc = offsets;
  if (num_reqs == 0) return region;

  region.first_req = first_req;
  region.num_reqs = num_reqs;
  const std::int32_t* from = batch.query_start_loc.data() + first_req;
  const std::int32_t base = from[0];
  std::int32_t longest = 0;
  std::int32_t shortest = from[1] - base;
  for (std::int32_t i = 0; i < num_reqs; ++i) {
    const std::int32_t query_len = from[i + 1] - from[i];
    longest = std::max(longest, query_len);
    shortest = std::min(shortest, query_len);
    offsets[static_cast<std::size_t>(i) + 1] = from[i + 1] - base;
  }
  region.num_tokens = offsets.back();
  region.max_query_len = longest;
  region.min_query_len = shortest;
  fill_seq_len_bounds(batch, num_unpadded, region);
  return region;
}

std::int64_t count_kv_tokens(const Batch& batch, std::int32_t num_unpadded) noexcept {
  const auto seq_lens = batch.best_seq_lens();
  if (seq_lens.empty()) return std::int64_t{num_unpadded} * batch.max_seq_len;
  std::int64_t sum = 0;
  for (const std::int32_t len : seq_lens.first(static_cast<std::size_t>(num_unpadded))) sum += len;
  return sum;
}

}  // namespace

tl::expected<Metadata, Error> MetadataBuilder::build(const Batch& batch) noexcept {
  const auto plan = make_plan(batch);
  if (!plan) return tl::unexpected(plan.error());
  const std::int64_t entries = plan->num_entries();
  if (entries > max_entries_) return tl::unexpected(Error{Error::capacity_exceeded, -1, entries, max_entries_});
  const std::int64_t bytes = plan->num_bytes();
  if (!arena_.reset(bytes)) return tl::unexpected(Error{Error::out_of_memory, -1, bytes, 0});

  const Split& split = plan->split;
  const std::int32_t first_extend = split.num_decodes;
  const std::int32_t first_prefill = first_extend + split.num_extends;
  const std::int32_t num_unpadded = num_unpadded_reqs(batch);
  Metadata metadata;
  metadata.split = split;
  metadata.decode = write_region(batch, num_unpadded, 0, split.num_decodes, arena_);
  metadata.extend = write_region(batch, num_unpadded, first_extend, split.num_extends, arena_);
  metadata.prefill = write_region(batch, num_unpadded, first_prefill, split.num_prefills, arena_);
  metadata.context = write_chunks(batch, first_extend, plan->chunks, arena_);
  if (plan->window_tokens)
    metadata.window = write_window(batch, first_extend, split.num_extends, *plan->window_tokens, arena_);
  metadata.num_kv_tokens = count_kv_tokens(batch, num_unpadded);
  return metadata;
}

}  // namespace attn
