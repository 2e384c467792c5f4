#include "attn/metadata.hpp"

#include "attn/plan.hpp"

namespace attn {
namespace {

Region write_region(const Batch& batch, std::int32_t num_unpadded, std::int32_t first_req, std::int32_t num_reqs,
                    Arena& arena) noexcept {
  Region region = region_numbers(batch, num_unpadded, first_req, num_reqs);
  const auto offsets = arena.take<std::int32_t>(num_reqs + std::int64_t{1});
  offsets[0] = 0;
  region.query_start_loc = offsets;
  if (num_reqs == 0) return region;
  const std::int32_t* from = batch.query_start_loc.data() + first_req;
  const std::int32_t base = from[0];
  for (std::int32_t i = 1; i <= num_reqs; ++i) offsets[static_cast<std::size_t>(i)] = from[i] - base;
  return region;
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
