#include "attn/sliding_window.hpp"

#include "attn/checked.hpp"
#include "attn/token_map.hpp"

#include <algorithm>

namespace attn {
namespace {

std::int32_t window_len(const Batch& batch, std::int32_t req) noexcept {
  const std::int64_t seq_len = batch.best_seq_lens()[static_cast<std::size_t>(req)];
  const std::int64_t reach = std::int64_t{batch.query_len(req)} + *batch.config.window_left + 1;
  return static_cast<std::int32_t>(std::min(seq_len, reach));
}

}  // namespace

tl::expected<std::int32_t, Error> count_window_tokens(const Batch& batch, std::int32_t first_extend,
                                                      std::int32_t num_extends) noexcept {
  std::int64_t total = 0;
  for (std::int32_t i = first_extend; i < first_extend + num_extends; ++i) {
    total += window_len(batch, i);
    if (total > int32_limit) return tl::unexpected(Error{Error::sum_overflow, i, total, int32_limit});
  }
  return static_cast<std::int32_t>(total);
}

std::int64_t window_entries(std::int64_t num_extends, std::int64_t total_tokens) noexcept {
  return 3 * num_extends + 1 + total_tokens;
}

std::int64_t window_bytes(std::int64_t num_extends, std::int64_t total_tokens) noexcept {
  return 2 * Arena::bytes_for<std::int32_t>(num_extends) + Arena::bytes_for<std::int32_t>(num_extends + 1) +
         Arena::bytes_for<std::int32_t>(total_tokens);
}

SlidingWindow write_window(const Batch& batch, std::int32_t first_extend, std::int32_t num_extends,
                           std::int32_t total_tokens, Arena& arena) noexcept {
  const auto starts = arena.take<std::int32_t>(num_extends);
  const auto lens = arena.take<std::int32_t>(num_extends);
  const auto cumulative = arena.take<std::int32_t>(num_extends + 1);
  const auto owners = arena.take<std::int32_t>(total_tokens);
  const auto seq_lens = batch.best_seq_lens();
  for (std::int32_t e = 0; e < num_extends; ++e) {
    const auto i = static_cast<std::size_t>(e);
    const std::int32_t req = first_extend + e;
    lens[i] = window_len(batch, req);
    starts[i] = seq_lens[static_cast<std::size_t>(req)] - lens[i];
  }

  SlidingWindow window;
  window.max_seq_len = accumulate_lens(lens, cumulative);
  window.total_tokens = total_tokens;
  map_tokens(cumulative, owners.data());
  window.seq_starts = starts;
  window.seq_lens = lens;
  window.cu_seq_lens = cumulative;
  window.token_to_batch = owners;
  return window;
}

}  // namespace attn
