#include "attn/plan.hpp"

#include "attn/arena.hpp"

#include <algorithm>

namespace attn {
namespace {

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

}  // namespace

std::int64_t Plan::num_entries() const noexcept {
  return std::int64_t{split.num_decodes} + split.num_extends + split.num_prefills + 3 + num_surplus_tokens +
         chunks.num_entries() + (window_tokens ? window_entries(split.num_extends, *window_tokens) : 0);
}

std::int64_t Plan::num_bytes() const noexcept {
  const auto offsets = [](std::int64_t num_reqs) { return Arena::bytes_for<std::int32_t>(num_reqs + 1); };
  return offsets(split.num_decodes) + offsets(split.num_extends) + offsets(split.num_prefills) + chunks.num_bytes() +
         (window_tokens ? window_bytes(split.num_extends, *window_tokens) : 0);
}

tl::expected<Plan, Error> make_plan(const Batch& batch) noexcept {
  if (auto error = check_offsets(batch)) return tl::unexpected(*error);
  if (auto error = check_lengths(batch)) return tl::unexpected(*error);
  Plan plan;
  const auto split = split_checked(batch);
  if (!split) return tl::unexpected(split.error());
  plan.split = *split;
  plan.num_surplus_tokens = num_surplus_tokens(batch);

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

Region region_numbers(const Batch& batch, std::int32_t num_unpadded, std::int32_t first_req,
                      std::int32_t num_reqs) noexcept {
  Region region;
  if (num_reqs == 0) return region;
  region.first_req = first_req;
  region.num_reqs = num_reqs;
  const std::int32_t* from = batch.query_start_loc.data() + first_req;
  std::int32_t longest = 0;
  std::int32_t shortest = from[1] - from[0];
  for (std::int32_t i = 0; i < num_reqs; ++i) {
    const std::int32_t query_len = from[i + 1] - from[i];
    longest = std::max(longest, query_len);
    shortest = std::min(shortest, query_len);
  }
  region.num_tokens = from[num_reqs] - from[0];
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

}  // namespace attn
