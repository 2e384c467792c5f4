#include "attn/device/capacity.hpp"

#include <algorithm>
#include <string_view>

namespace attn::device {
namespace {

Capacity capacity_of(const Batch& batch, const Plan& plan) noexcept {
  Capacity needed;
  needed.max_reqs = batch.num_reqs;
  needed.max_query_tokens = batch.num_actual_tokens;
  needed.max_chunks = static_cast<std::int32_t>(plan.chunks.num_chunks);
  needed.max_slices = plan.chunks.num_chunks * plan.chunks.num_extends;
  needed.max_context_tokens = plan.chunks.total_tokens;
  needed.max_window_tokens = plan.window_tokens.value_or(0);
  return needed;
}

}  // namespace

tl::expected<Capacity, Error> required_capacity(const Batch& batch) noexcept {
  const auto plan = make_plan(batch);
  if (!plan) return tl::unexpected(plan.error());
  if (auto error = check_policy(batch)) return tl::unexpected(*error);
  return capacity_of(batch, *plan);
}

Capacity max(const Capacity& a, const Capacity& b) noexcept {
  Capacity both;
  both.max_reqs = std::max(a.max_reqs, b.max_reqs);
  both.max_query_tokens = std::max(a.max_query_tokens, b.max_query_tokens);
  both.max_chunks = std::max(a.max_chunks, b.max_chunks);
  both.max_slices = std::max(a.max_slices, b.max_slices);
  both.max_context_tokens = std::max(a.max_context_tokens, b.max_context_tokens);
  both.max_window_tokens = std::max(a.max_window_tokens, b.max_window_tokens);
  both.builds_in_flight = std::max(a.builds_in_flight, b.builds_in_flight);
  both.captures = a.captures || b.captures;
  return both;
}

std::optional<Error> check_capacity(const Capacity& capacity) noexcept {
  struct Number {
    std::string_view name;
    std::int64_t value;
    std::int64_t least;
  };
  const Number numbers[] = {
      {"max_reqs", capacity.max_reqs, 0},
      {"max_query_tokens", capacity.max_query_tokens, 0},
      {"max_chunks", capacity.max_chunks, 0},
      {"max_slices", capacity.max_slices, 0},
      {"max_context_tokens", capacity.max_context_tokens, 0},
      {"max_window_tokens", capacity.max_window_tokens, 0},
      {"builds_in_flight", capacity.builds_in_flight, 1},
  };
  for (const Number& number : numbers)
    if (number.value < number.least) return Error{Error::invalid_capacity, -1, number.value, number.least, number.name};
  if (capacity.builds_in_flight > max_builds_in_flight)
    return Error{Error::capacity_exceeded, -1, capacity.builds_in_flight, max_builds_in_flight, "builds in flight"};
  return std::nullopt;
}

std::optional<Error> check_tiling(const Tiling& tiling) noexcept {
  struct Number {
    std::string_view name;
    std::int32_t value;
    std::int32_t most;
  };
  const Number numbers[] = {
      {"tile_items", tiling.tile_items, max_tile_items},
      {"max_segments", tiling.max_segments, max_row_segments},
  };
  for (const Number& number : numbers) {
    if (number.value < 1) return Error{Error::invalid_capacity, -1, number.value, 1, number.name};
    if (number.value > number.most) return Error{Error::capacity_exceeded, -1, number.value, number.most, number.name};
  }
  return std::nullopt;
}

std::optional<Error> check_policy(const Batch& batch) noexcept {
  switch (batch.config.chunk_policy) {
    case ChunkPolicy::equal_share:
    case ChunkPolicy::packed:
    case ChunkPolicy::none:
      return std::nullopt;
    case ChunkPolicy::mla:
      break;
  }
  return Error{Error::unsupported_policy, -1, 0, 0, name(batch.config.chunk_policy)};
}

std::optional<Error> check_fit(const Batch& batch, const Plan& plan, const Capacity& capacity) noexcept {
  struct Use {
    std::string_view name;
    std::int64_t needed;
    std::int64_t available;
  };
  const Capacity needed = capacity_of(batch, plan);
  const Use uses[] = {
      {"requests", needed.max_reqs, capacity.max_reqs},
      {"query tokens", needed.max_query_tokens, capacity.max_query_tokens},
      {"chunks", needed.max_chunks, capacity.max_chunks},
      {"slices", needed.max_slices, capacity.max_slices},
      {"context tokens", needed.max_context_tokens, capacity.max_context_tokens},
      {"window tokens", needed.max_window_tokens, capacity.max_window_tokens},
  };
  for (const Use& use : uses)
    if (use.needed > use.available) return Error{Error::capacity_exceeded, -1, use.needed, use.available, use.name};
  return std::nullopt;
}

}  // namespace attn::device
