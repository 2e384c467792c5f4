#include "attn/batch.hpp"

#include <algorithm>

namespace attn {
namespace {

std::optional<Error> check_config(const Config& config) noexcept {
  if (config.decode_threshold < 0) return Error{Error::invalid_decode_threshold, -1, config.decode_threshold, 0};
  if (config.workspace_tokens < 0) return Error{Error::invalid_workspace, -1, config.workspace_tokens, 0};
  if (config.chunk_alignment < 1) return Error{Error::invalid_chunk_alignment, -1, config.chunk_alignment, 0};
  if (config.window_left && *config.window_left < 0) return Error{Error::invalid_window, -1, *config.window_left, 0};
  return std::nullopt;
}

std::optional<Error> check_counts(const Batch& batch) noexcept {
  const std::int64_t num_reqs = batch.num_reqs;
  const auto count = [](auto span) { return static_cast<std::int64_t>(span.size()); };
  if (num_reqs < 0) return Error{Error::negative_num_reqs, -1, num_reqs, 0};
  const bool offsets_left_out = num_reqs == 0 && batch.query_start_loc.empty();
  if (!offsets_left_out && count(batch.query_start_loc) != num_reqs + 1)
    return Error{Error::offsets_count, -1, count(batch.query_start_loc), num_reqs + 1};
  if (!batch.seq_lens.empty() && count(batch.seq_lens) != num_reqs)
    return Error{Error::seq_lens_count, -1, count(batch.seq_lens), num_reqs};
  if (!batch.seq_lens_upper_bound.empty() && count(batch.seq_lens_upper_bound) != num_reqs)
    return Error{Error::upper_bound_count, -1, count(batch.seq_lens_upper_bound), num_reqs};
  return std::nullopt;
}

/// First entry below the one before it; there is one.
Error first_decrease(std::span<const std::int32_t> offsets) noexcept {
  std::size_t i = 1;
  while (offsets[i] >= offsets[i - 1]) ++i;
  return Error{Error::offsets_decreasing, static_cast<std::int64_t>(i), offsets[i], offsets[i - 1]};
}

/// The first request with this query length; there is one.
std::int64_t first_with_query_len(const Batch& batch, std::int32_t query_len) noexcept {
  std::int32_t i = 0;
  while (batch.query_len(i) != query_len) ++i;
  return i;
}

struct Extremes {
  std::int32_t min = 0;
  std::int32_t max = 0;
};

/// Branch-free, so that the compiler turns it into vector code: this runs over every length of every step.
Extremes extremes(std::span<const std::int32_t> lens) noexcept {
  Extremes found;
  for (const std::int32_t len : lens) {
    found.min = std::min(found.min, len);
    found.max = std::max(found.max, len);
  }
  return found;
}

std::int64_t index_of(std::span<const std::int32_t> lens, std::int32_t value) noexcept {
  return std::find(lens.begin(), lens.end(), value) - lens.begin();
}

std::optional<Error> check_one_span(std::span<const std::int32_t> lens, Error::Kind negative,
                                    std::int32_t max_seq_len) noexcept {
  const Extremes found = extremes(lens);
  if (found.min < 0) {
    const auto first = std::find_if(lens.begin(), lens.end(), [](std::int32_t len) { return len < 0; });
    return Error{negative, first - lens.begin(), *first, 0};
  }
  if (found.max > max_seq_len)
    return Error{Error::max_seq_len_too_small, index_of(lens, found.max), max_seq_len, found.max};
  return std::nullopt;
}

}  // namespace

std::optional<Error> check_offsets(const Batch& batch) noexcept {
  if (auto error = check_config(batch.config)) return error;
  if (auto error = check_counts(batch)) return error;

  const auto offsets = batch.query_start_loc;
  const std::int32_t last = offsets.empty() ? 0 : offsets.back();
  if (!offsets.empty() && offsets.front() != 0) return Error{Error::offsets_start, 0, offsets.front(), 0};
  bool decreasing = false;
  std::uint32_t longest = 0;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    decreasing |= offsets[i] < offsets[i - 1];
    // Unsigned, because a malformed pair may be further apart than int32 reaches.
    longest = std::max(longest, static_cast<std::uint32_t>(offsets[i]) - static_cast<std::uint32_t>(offsets[i - 1]));
  }
  if (decreasing) return first_decrease(offsets);
  if (batch.num_actual_tokens < last) return Error{Error::token_count_too_small, -1, batch.num_actual_tokens, last};
  // Before the longest request is looked for: there may be none.
  if (batch.max_query_len < 0) return Error{Error::negative_max_query_len, -1, batch.max_query_len, 0};
  const auto longest_query = static_cast<std::int32_t>(longest);
  if (batch.max_query_len < longest_query)
    return Error{Error::max_query_len_too_small, first_with_query_len(batch, longest_query), batch.max_query_len,
                 longest_query};
  if (batch.max_seq_len < 0) return Error{Error::negative_max_seq_len, -1, batch.max_seq_len, 0};
  return std::nullopt;
}

std::optional<Error> check_lengths(const Batch& batch) noexcept {
  const auto real = static_cast<std::size_t>(num_unpadded_reqs(batch));
  const auto exact = batch.seq_lens.empty() ? batch.seq_lens : batch.seq_lens.first(real);
  const auto bound =
      batch.seq_lens_upper_bound.empty() ? batch.seq_lens_upper_bound : batch.seq_lens_upper_bound.first(real);
  if (auto error = check_one_span(exact, Error::negative_seq_len, batch.max_seq_len)) return error;
  if (auto error = check_one_span(bound, Error::negative_upper_bound, batch.max_seq_len)) return error;
  if (exact.empty() || bound.empty()) return std::nullopt;
  bool above = false;
  for (std::size_t i = 0; i < real; ++i) above |= exact[i] > bound[i];
  if (!above) return std::nullopt;
  std::size_t i = 0;
  while (exact[i] <= bound[i]) ++i;
  return Error{Error::seq_len_above_bound, static_cast<std::int64_t>(i), exact[i], bound[i]};
}

std::string_view name(ChunkPolicy policy) noexcept {
  switch (policy) {
    case ChunkPolicy::equal_share:
      return "equal_share";
    case ChunkPolicy::packed:
      return "packed";
    case ChunkPolicy::mla:
      return "mla";
    case ChunkPolicy::none:
      return "none";
  }
  return "unknown";
}

std::int32_t num_surplus_tokens(const Batch& batch) noexcept {
  return batch.num_actual_tokens - (batch.query_start_loc.empty() ? 0 : batch.query_start_loc.back());
}

std::int32_t num_unpadded_reqs(const Batch& batch) noexcept {
  std::int32_t end = batch.num_reqs;
  while (end > 0 && batch.query_len(end - 1) == 0) --end;
  return end;
}

}  // namespace attn
