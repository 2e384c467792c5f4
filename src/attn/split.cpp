#include "attn/split.hpp"

#include "attn/checked.hpp"

#include <algorithm>
#include <optional>

namespace attn {
namespace {

Split all_decodes(const Batch& batch) noexcept {
  Split split;
  split.num_decodes = batch.num_reqs;
  split.num_decode_tokens = batch.num_actual_tokens;
  return split;
}

/// First request longer than the threshold, num_reqs when there is none.
std::int32_t first_long(const Batch& batch) noexcept {
  const std::int32_t threshold = batch.config.decode_threshold;
  if (batch.max_query_len <= threshold) return batch.num_reqs;
  std::int32_t i = 0;
  while (i < batch.num_reqs && batch.query_len(i) <= threshold) ++i;
  return i;
}

/// First request in [begin, end) that is long and has no context, `end` when there is none.
std::int32_t find_first_prefill(const Batch& batch, std::int32_t begin, std::int32_t end) noexcept {
  const auto seq_lens = batch.class_seq_lens();
  std::int32_t i = begin;
  while (i < end) {
    const std::int32_t query_len = batch.query_len(i);
    if (query_len > batch.config.decode_threshold && seq_lens[static_cast<std::size_t>(i)] == query_len) break;
    ++i;
  }
  return i;
}

std::optional<Error> check_order(const Batch& batch, std::int32_t first_prefill, std::int32_t end) noexcept {
  const auto seq_lens = batch.class_seq_lens();
  for (std::int32_t i = first_prefill; i < end; ++i) {
    const std::int32_t query_len = batch.query_len(i);
    const std::int32_t context = context_len(query_len, seq_lens[static_cast<std::size_t>(i)]);
    if (query_len > 0 && context > 0) return Error{Error::unordered, i, context, first_prefill};
  }
  return std::nullopt;
}

/// Requests before the first that is no decode by `rule`.
std::int32_t count_leading_decodes(const Batch& batch, const DecodePrefillRule& rule) noexcept {
  const std::int32_t threshold = batch.config.decode_threshold;
  const std::int32_t num_short = first_long(batch);
  if (num_short == 0) return 0;
  // Up to a threshold of 1, rows that are all short cannot differ in more than padding.
  const bool cannot_differ = num_short == batch.num_reqs && threshold <= 1 && rule.is_prefilling.empty();
  const bool uniform = rule.require_uniform && !cannot_differ;
  const std::int32_t first = batch.query_len(0);
  std::int32_t i = 0;
  for (; i < num_short; ++i) {
    const std::int32_t query_len = batch.query_len(i);
    if (uniform && query_len != first && query_len != 0) break;
    if (!rule.is_prefilling.empty() && rule.is_prefilling[static_cast<std::size_t>(i)]) break;
  }
  return i;
}

}  // namespace

tl::expected<Split, Error> split_checked(const Batch& batch) noexcept {
  const std::int32_t first_extend = first_long(batch);
  if (first_extend == batch.num_reqs) return all_decodes(batch);
  if (batch.class_seq_lens().empty()) return tl::unexpected(Error{Error::missing_seq_lens, first_extend, 0, 0});

  const std::int32_t end = num_unpadded_reqs(batch);
  const std::int32_t first_prefill = find_first_prefill(batch, first_extend, end);
  if (auto error = check_order(batch, first_prefill, end)) return tl::unexpected(*error);

  const auto token = [&](std::int32_t req) { return batch.query_start_loc[static_cast<std::size_t>(req)]; };
  Split split;
  split.num_decodes = first_extend;
  split.num_extends = first_prefill - first_extend;
  split.num_prefills = end - first_prefill;
  split.num_padding = batch.num_reqs - end;
  split.num_decode_tokens = token(first_extend);
  split.num_extend_tokens = token(first_prefill) - token(first_extend);
  split.num_prefill_tokens = token(end) - token(first_prefill);
  split.num_padding_tokens = num_surplus_tokens(batch);
  return split;
}

tl::expected<Split, Error> split_decodes_extends_prefills(const Batch& batch) noexcept {
  if (auto error = check_offsets(batch)) return tl::unexpected(*error);
  // Before any length is looked at: a decode-only batch may come without, or with ones nobody may touch.
  if (first_long(batch) == batch.num_reqs) return all_decodes(batch);
  if (auto error = check_lengths(batch)) return tl::unexpected(*error);
  return split_checked(batch);
}

tl::expected<DecodePrefillSplit, Error> split_decodes_prefills(const Batch& batch,
                                                               const DecodePrefillRule& rule) noexcept {
  if (auto error = check_offsets(batch)) return tl::unexpected(*error);
  const std::int32_t num_reqs = batch.num_reqs;
  const auto num_flags = static_cast<std::int64_t>(rule.is_prefilling.size());
  if (num_flags != 0 && num_flags != num_reqs)
    return tl::unexpected(Error{Error::count_mismatch, -1, num_flags, num_reqs});

  const std::int32_t num_decodes = count_leading_decodes(batch, rule);
  if (num_decodes == num_reqs) return DecodePrefillSplit{num_reqs, 0, batch.num_actual_tokens, 0};
  const std::int32_t num_decode_tokens = batch.query_start_loc[static_cast<std::size_t>(num_decodes)];
  return DecodePrefillSplit{num_decodes, num_reqs - num_decodes, num_decode_tokens,
                            batch.num_actual_tokens - num_decode_tokens};
}

tl::expected<std::int32_t, Error> split_prefill_chunks(std::span<const std::int32_t> seq_lens,
                                                       std::int32_t workspace_tokens, std::int32_t request_offset,
                                                       std::span<RequestRange> chunks) noexcept {
  const auto count = static_cast<std::int64_t>(seq_lens.size());
  if (workspace_tokens < 0) return tl::unexpected(Error{Error::invalid_workspace, -1, workspace_tokens, 0});
  if (chunks.size() < seq_lens.size())
    return tl::unexpected(Error{Error::capacity_exceeded, -1, count, static_cast<std::int64_t>(chunks.size())});
  if (count > int32_limit) return tl::unexpected(Error{Error::capacity_exceeded, -1, count, int32_limit});
  if (count + request_offset > int32_limit)
    return tl::unexpected(Error{Error::sum_overflow, count, count + request_offset, int32_limit});
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (seq_lens[i] < 0) return tl::unexpected(Error{Error::negative_seq_len, index, seq_lens[i], 0});
    if (seq_lens[i] > workspace_tokens)
      return tl::unexpected(Error{Error::workspace_too_small, index, workspace_tokens, seq_lens[i]});
  }

  std::int32_t num_chunks = 0;
  std::int32_t first = 0;
  std::int64_t tokens = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t seq_len = seq_lens[static_cast<std::size_t>(i)];
    if (tokens + seq_len > workspace_tokens) {
      chunks[static_cast<std::size_t>(num_chunks++)] = {first + request_offset, i + request_offset};
      first = i;
      tokens = 0;
    }
    tokens += seq_len;
  }
  if (count > 0)
    chunks[static_cast<std::size_t>(num_chunks++)] = {first + request_offset,
                                                      static_cast<std::int32_t>(count) + request_offset};
  return num_chunks;
}

}  // namespace attn
