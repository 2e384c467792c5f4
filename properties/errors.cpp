#include "properties/errors.hpp"

#include "properties/naive.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace properties {
namespace {

using attn::Batch;
using attn::Error;

constexpr std::int64_t int32_max = std::numeric_limits<std::int32_t>::max();

ErrorKinds of_configuration_and_counts(const Batch& batch) {
  ErrorKinds broken;
  const auto size = [](auto span) { return static_cast<std::int64_t>(span.size()); };
  broken[Error::invalid_decode_threshold] = batch.config.decode_threshold < 0;
  broken[Error::invalid_workspace] = batch.config.workspace_tokens < 0;
  broken[Error::invalid_window] = batch.config.window_left.value_or(0) < 0;
  broken[Error::negative_num_reqs] = batch.num_reqs < 0;
  const bool offsets_may_be_absent = batch.num_reqs == 0 && batch.query_start_loc.empty();
  broken[Error::offsets_count] = !offsets_may_be_absent && size(batch.query_start_loc) - 1 != batch.num_reqs;
  broken[Error::seq_lens_count] = !batch.seq_lens.empty() && size(batch.seq_lens) != batch.num_reqs;
  broken[Error::upper_bound_count] =
      !batch.seq_lens_upper_bound.empty() && size(batch.seq_lens_upper_bound) != batch.num_reqs;
  return broken;
}

/// Offsets and what the scalars say of them.
ErrorKinds of_offsets(const Batch& batch) {
  ErrorKinds broken;
  const auto offsets = batch.query_start_loc;
  broken[Error::offsets_start] = !offsets.empty() && offsets[0] != 0;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) broken.set(Error::offsets_decreasing);
    if (std::int64_t{offsets[i]} - offsets[i - 1] > batch.max_query_len) broken.set(Error::max_query_len_too_small);
  }
  if (batch.max_query_len < 0) broken.set(Error::max_query_len_too_small);
  if (batch.max_seq_len < 0) broken.set(Error::max_seq_len_too_small);
  broken[Error::token_count_mismatch] = batch.num_actual_tokens != (offsets.empty() ? 0 : offsets.back());
  return broken;
}

ErrorKinds of_lengths(const Batch& batch, const std::vector<naive::Row>& rows) {
  ErrorKinds broken;
  for (std::size_t i = 0; i < rows.size() && !rows[i].is_padding; ++i) {
    const bool has_exact = !batch.seq_lens.empty();
    const bool has_bound = !batch.seq_lens_upper_bound.empty();
    if (has_exact && batch.seq_lens[i] < 0) broken.set(Error::negative_seq_len);
    if (has_bound && batch.seq_lens_upper_bound[i] < 0) broken.set(Error::negative_upper_bound);
    if (has_exact && batch.seq_lens[i] > batch.max_seq_len) broken.set(Error::max_seq_len_too_small);
    if (has_bound && batch.seq_lens_upper_bound[i] > batch.max_seq_len) broken.set(Error::max_seq_len_too_small);
    if (has_exact && has_bound && batch.seq_lens[i] > batch.seq_lens_upper_bound[i])
      broken.set(Error::seq_len_above_bound);
  }
  return broken;
}

ErrorKinds of_order(const Batch& batch, const std::vector<naive::Row>& rows) {
  ErrorKinds broken;
  for (const naive::Row& row : rows) {
    if (row.query_len > batch.config.decode_threshold && !row.class_seq_len) broken.set(Error::missing_seq_lens);
    const bool has_context = row.query_len > 0 && row.class_seq_len.value_or(0) > row.query_len;
    if (row.row_class == naive::RowClass::prefill && has_context) broken.set(Error::unordered);
  }
  return broken;
}

/// What the arrays of the metadata hold in all, without making them.
ErrorKinds of_sizes(const Batch& batch, const Judged& judged, std::int64_t max_entries) {
  const auto& rows = judged.rows;
  const auto& contexts = judged.contexts;
  ErrorKinds broken;
  std::int64_t offsets = 3;
  std::int64_t context_tokens = 0;
  std::int64_t window_tokens = 0;
  for (const naive::Row& row : rows) {
    if (row.row_class != naive::RowClass::padding) ++offsets;
    if (row.row_class != naive::RowClass::extend) continue;
    context_tokens += row.context;
    const std::int64_t reach = std::int64_t{row.query_len} + batch.config.window_left.value_or(0) + 1;
    window_tokens += std::min<std::int64_t>(*row.seq_len, reach);
  }
  const auto extends = static_cast<std::int64_t>(contexts.size());
  const bool windowed = batch.config.window_left.has_value();
  const bool packed = batch.config.chunk_policy == attn::ChunkPolicy::packed;
  broken[Error::workspace_too_small] = context_tokens > 0 && batch.config.workspace_tokens < (packed ? 1 : extends);
  broken[Error::sum_overflow] = windowed && window_tokens > int32_max;
  if (broken[Error::workspace_too_small]) return broken;
  const std::int64_t passes = naive::count_passes(contexts, batch.config.workspace_tokens, batch.config.chunk_policy);
  const std::int64_t of_window = windowed ? 3 * extends + 1 + window_tokens : 0;
  // starts, lens, cumulative; total, maximum, place of each pass; the map.
  const double of_passes = static_cast<double>(passes) * static_cast<double>(3 * extends + 4);
  const double entries = of_passes + static_cast<double>(offsets + extends + 1 + context_tokens + of_window);
  broken[Error::capacity_exceeded] = entries > static_cast<double>(max_entries);
  return broken;
}

std::string names_of(const ErrorKinds& kinds) {
  std::string names;
  for (int kind = 0; kind < Error::num_kinds; ++kind) {
    if (!kinds[static_cast<std::size_t>(kind)]) continue;
    if (!names.empty()) names += ", ";
    names += attn::name(static_cast<Error::Kind>(kind));
  }
  return names.empty() ? "no rule" : names;
}

/// Whether index, value and limit are those of the batch, as error.hpp words them for the kind.
bool numbers_are_true(const Batch& batch, const Error& error, std::int64_t max_entries) {
  const auto is = [&](std::int64_t value, std::int64_t limit) { return error.value == value && error.limit == limit; };
  const auto count = [](auto span) { return static_cast<std::int64_t>(span.size()); };
  const auto entry = [&](auto span, std::int64_t i) -> std::int64_t {
    return i >= 0 && i < count(span) ? span[static_cast<std::size_t>(i)] : int32_max + 1;  // no int32 equals that
  };
  const std::int64_t i = error.index;
  switch (error.kind) {
    case Error::negative_num_reqs:
      return error.value == batch.num_reqs && error.value < 0;
    case Error::offsets_count:
      return is(count(batch.query_start_loc), std::int64_t{batch.num_reqs} + 1);
    case Error::offsets_start:
      return i == 0 && error.value == batch.query_start_loc[0] && error.value != 0;
    case Error::offsets_decreasing:
      return i >= 1 && is(entry(batch.query_start_loc, i), entry(batch.query_start_loc, i - 1)) &&
             error.value < error.limit;
    case Error::token_count_mismatch:
      return is(batch.num_actual_tokens, batch.query_start_loc.empty() ? 0 : batch.query_start_loc.back());
    case Error::max_query_len_too_small:
      if (i == -1) return is(batch.max_query_len, 0) && error.value < 0;
      return is(batch.max_query_len, entry(batch.query_start_loc, i + 1) - entry(batch.query_start_loc, i)) &&
             error.value < error.limit;
    case Error::seq_lens_count:
      return is(count(batch.seq_lens), batch.num_reqs);
    case Error::upper_bound_count:
      return is(count(batch.seq_lens_upper_bound), batch.num_reqs);
    case Error::negative_seq_len:
      return error.value == entry(batch.seq_lens, i) && error.value < 0;
    case Error::negative_upper_bound:
      return error.value == entry(batch.seq_lens_upper_bound, i) && error.value < 0;
    case Error::seq_len_above_bound:
      return is(entry(batch.seq_lens, i), entry(batch.seq_lens_upper_bound, i)) && error.value > error.limit;
    case Error::max_seq_len_too_small:
      if (i == -1) return is(batch.max_seq_len, 0) && error.value < 0;
      return error.value == batch.max_seq_len && error.value < error.limit &&
             (error.limit == entry(batch.seq_lens, i) || error.limit == entry(batch.seq_lens_upper_bound, i));
    case Error::missing_seq_lens:
      return i >= 0 && i < batch.num_reqs &&
             batch.query_len(static_cast<std::int32_t>(i)) > batch.config.decode_threshold;
    case Error::unordered: {
      const auto rows = naive::rows_of(batch);
      const auto first = std::find_if(rows.begin(), rows.end(),
                                      [](const naive::Row& row) { return row.row_class == naive::RowClass::prefill; });
      if (i <= first - rows.begin() || i >= count(std::span{rows})) return false;
      const naive::Row& row = rows[static_cast<std::size_t>(i)];
      return is(*row.class_seq_len - row.query_len, first - rows.begin()) && error.value > 0 && row.query_len > 0;
    }
    case Error::invalid_decode_threshold:
      return error.value == batch.config.decode_threshold && error.value < 0;
    case Error::invalid_workspace:
      return error.value == batch.config.workspace_tokens && error.value < 0;
    case Error::invalid_window:
      return error.value == batch.config.window_left && error.value < 0;
    case Error::workspace_too_small: {
      const auto rows = naive::rows_of(batch);
      const auto extends = std::count_if(
          rows.begin(), rows.end(), [](const naive::Row& row) { return row.row_class == naive::RowClass::extend; });
      return is(batch.config.workspace_tokens, batch.config.chunk_policy == attn::ChunkPolicy::packed ? 1 : extends) &&
             error.value < error.limit;
    }
    case Error::sum_overflow:
      return i >= 0 && i < batch.num_reqs && error.value > error.limit && error.limit == int32_max;
    case Error::capacity_exceeded:
      return error.value > error.limit && (error.limit == max_entries || error.limit == int32_max);
    default:
      return false;  // no error of the builder
  }
}

/// The line people read names the kind and the value found, so that it can be acted on.
bool line_says_it(const Error& error) {
  const std::string line = attn::message(error);
  const bool has_value =
      error.kind == Error::missing_seq_lens || line.find(std::to_string(error.value)) != std::string::npos;
  return line.starts_with(attn::name(error.kind)) && has_value && line.find('\n') == std::string::npos;
}

}  // namespace

Judged judge(const attn::Batch& batch, std::int64_t max_entries) {
  Judged judged;
  ErrorKinds& broken = judged.broken;
  broken = of_configuration_and_counts(batch);
  const bool counts_are_sound = !broken[Error::negative_num_reqs] && !broken[Error::offsets_count] &&
                                !broken[Error::seq_lens_count] && !broken[Error::upper_bound_count];
  if (!counts_are_sound) return judged;
  broken |= of_offsets(batch);
  if (broken.any()) return judged;
  judged.rows = naive::rows_of(batch);
  judged.contexts = naive::contexts_of(judged.rows);
  broken |= of_lengths(batch, judged.rows);
  if (broken.any()) return judged;
  broken |= of_order(batch, judged.rows);
  if (broken.none()) broken = of_sizes(batch, judged, max_entries);
  return judged;
}

Verdict legal_batches_are_built(const Judged& judged, const attn::Error& error) {
  if (judged.broken.any()) return std::nullopt;
  return Difference{"build", fmt::format("refused with {}, but breaks no rule", attn::message(error))};
}

Verdict errors_tell_the_truth(const attn::Batch& batch, const Judged& judged, const std::optional<attn::Error>& error,
                              std::int64_t max_entries) {
  const ErrorKinds& broken = judged.broken;
  if (!error) {
    if (broken.none()) return std::nullopt;
    return Difference{"build", fmt::format("built, but breaks {}", names_of(broken))};
  }
  if (broken.none()) return std::nullopt;  // E1 has that
  if (!broken[error->kind])
    return Difference{"error kind",
                      fmt::format("{}, but the batch breaks {}", attn::message(*error), names_of(broken))};
  if (!numbers_are_true(batch, *error, max_entries))
    return Difference{"error numbers", fmt::format("{} (index {}, value {}, limit {}) is not what stands in the batch",
                                                   attn::message(*error), error->index, error->value, error->limit)};
  if (!line_says_it(*error)) return Difference{"error text", attn::message(*error)};
  return std::nullopt;
}

}  // namespace properties
