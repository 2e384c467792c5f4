#include "properties/errors.hpp"

#include "properties/naive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

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
  broken[Error::invalid_chunk_alignment] = batch.config.chunk_alignment < 1;
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
  if (batch.max_query_len < 0) broken.set(Error::negative_max_query_len);
  if (batch.max_seq_len < 0) broken.set(Error::negative_max_seq_len);
  broken[Error::token_count_too_small] = batch.num_actual_tokens < (offsets.empty() ? 0 : offsets.back());
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

/// Where the sum of the extends' windows leaves int32, if it does. Returns the sum.
std::int64_t sum_windows(const Batch& batch, Judged& judged) {
  if (!batch.config.window_left) return 0;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < judged.rows.size(); ++i) {
    const naive::Row& row = judged.rows[i];
    if (row.row_class != naive::RowClass::extend) continue;
    sum += std::min<std::int64_t>(*row.seq_len, std::int64_t{row.query_len} + *batch.config.window_left + 1);
    if (sum <= int32_max || judged.overflow_req >= 0) continue;
    judged.overflow_req = static_cast<std::int64_t>(i);
    judged.overflow_sum = sum;
  }
  return sum;
}

/// What the arrays of the metadata hold in all, without making them, and the tokens that no request owns.
std::int64_t count_entries(const Batch& batch, const Judged& judged, std::int64_t window_tokens) {
  const auto extends = static_cast<std::int64_t>(judged.contexts.size());
  const auto in_regions = std::count_if(judged.rows.begin(), judged.rows.end(), [](const naive::Row& row) {
    return row.row_class != naive::RowClass::padding;
  });
  // Without a plan no token of a context has an owner.
  const bool has_plan = batch.config.chunk_policy != attn::ChunkPolicy::none;
  const std::int64_t context_tokens =
      has_plan ? std::accumulate(judged.contexts.begin(), judged.contexts.end(), std::int64_t{0}) : 0;
  const std::int64_t of_window = batch.config.window_left ? 3 * extends + 1 + window_tokens : 0;
  std::int64_t surplus = batch.num_actual_tokens;
  for (const naive::Row& row : judged.rows) surplus -= row.query_len;
  // Starts, lengths, cumulative lengths; total, longest, place of each pass.
  __extension__ using Wide = __int128;
  const Wide of_passes = Wide{judged.num_passes} * (3 * extends + 4);
  const Wide entries = of_passes + in_regions + 3 + extends + 1 + context_tokens + of_window + surplus;
  return static_cast<std::int64_t>(std::min<Wide>(entries, Wide{1} << 62));
}

ErrorKinds of_sizes(const Batch& batch, Judged& judged, std::int64_t max_entries) {
  ErrorKinds broken;
  const auto extends = static_cast<std::int64_t>(judged.contexts.size());
  const bool any_context =
      std::any_of(judged.contexts.begin(), judged.contexts.end(), [](std::int64_t c) { return c > 0; });
  broken[Error::workspace_too_small] =
      any_context && batch.config.workspace_tokens < naive::least_workspace(extends, batch.config);
  const std::int64_t window_tokens = sum_windows(batch, judged);
  broken[Error::sum_overflow] = judged.overflow_req >= 0;
  if (broken[Error::workspace_too_small]) return broken;
  judged.num_passes = naive::count_passes(judged.contexts, batch.config);
  judged.num_entries = count_entries(batch, judged, window_tokens);
  broken[Error::capacity_exceeded] = judged.num_entries > max_entries || judged.num_passes > int32_max;
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

/// The largest of the lengths of requests that are not padding; 0 for none.
std::int64_t longest_of(std::span<const std::int32_t> lens, const std::vector<naive::Row>& rows) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < lens.size(); ++i)
    if (!rows[i].is_padding) longest = std::max<std::int64_t>(longest, lens[i]);
  return longest;
}

/// Whether index, value and limit are those of the batch, as error.hpp words them for the kind.
bool numbers_are_true(const Batch& batch, const Judged& judged, const Error& error, std::int64_t max_entries) {
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
    case Error::token_count_too_small:
      return is(batch.num_actual_tokens, batch.query_start_loc.empty() ? 0 : batch.query_start_loc.back()) &&
             error.value < error.limit;
    case Error::negative_max_query_len:
      return error.value == batch.max_query_len && error.value < 0;
    case Error::negative_max_seq_len:
      return error.value == batch.max_seq_len && error.value < 0;
    case Error::max_query_len_too_small: {
      std::int64_t longest = 0;
      for (std::int64_t req = 0; req < batch.num_reqs; ++req)
        longest = std::max(longest, entry(batch.query_start_loc, req + 1) - entry(batch.query_start_loc, req));
      return is(batch.max_query_len, longest) && error.value < error.limit &&
             entry(batch.query_start_loc, i + 1) - entry(batch.query_start_loc, i) == longest;
    }
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
    case Error::max_seq_len_too_small: {
      const auto is_longest = [&](std::span<const std::int32_t> lens) {
        return error.limit == entry(lens, i) && error.limit == longest_of(lens, judged.rows);
      };
      return error.value == batch.max_seq_len && error.value < error.limit &&
             (is_longest(batch.seq_lens) || is_longest(batch.seq_lens_upper_bound));
    }
    case Error::missing_seq_lens: {
      const auto first = std::find_if(judged.rows.begin(), judged.rows.end(), [&](const naive::Row& row) {
        return row.query_len > batch.config.decode_threshold;
      });
      return i == first - judged.rows.begin() && first != judged.rows.end();
    }
    case Error::unordered: {
      const auto& rows = judged.rows;
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
    case Error::invalid_chunk_alignment:
      return error.value == batch.config.chunk_alignment && error.value < 1;
    case Error::invalid_window:
      return error.value == batch.config.window_left && error.value < 0;
    case Error::workspace_too_small:
      return is(batch.config.workspace_tokens,
                naive::least_workspace(count(std::span{judged.contexts}), batch.config)) &&
             error.value < error.limit;
    case Error::sum_overflow:
      return i == judged.overflow_req && is(judged.overflow_sum, int32_max);
    case Error::capacity_exceeded:
      return judged.num_passes > int32_max ? is(judged.num_passes, int32_max) : is(judged.num_entries, max_entries);
    default:
      return false;  // no error of the builder
  }
}

/// Which numbers a kind has, as error.hpp lists them.
struct Numbers {
  bool index = false;
  bool value = true;
  bool limit = false;
};

Numbers numbers_of(Error::Kind kind) {
  switch (kind) {
    case Error::offsets_start:
    case Error::negative_seq_len:
    case Error::negative_upper_bound:
      return {.index = true};
    case Error::missing_seq_lens:
      return {.index = true, .value = false};
    case Error::offsets_decreasing:
    case Error::max_query_len_too_small:
    case Error::seq_len_above_bound:
    case Error::max_seq_len_too_small:
    case Error::unordered:
    case Error::sum_overflow:
      return {.index = true, .limit = true};
    case Error::offsets_count:
    case Error::token_count_too_small:
    case Error::seq_lens_count:
    case Error::upper_bound_count:
    case Error::workspace_too_small:
    case Error::capacity_exceeded:
      return {.limit = true};
    default:
      return {};
  }
}

/// What a kind has no number or name for is as in an error that says nothing.
bool says_no_more(const Error& error) {
  const Error nothing;
  const Numbers numbers = numbers_of(error.kind);
  return (numbers.index || error.index == nothing.index) && (numbers.value || error.value == nothing.value) &&
         (numbers.limit || error.limit == nothing.limit) && error.subject == nothing.subject &&
         error.hip_error == nothing.hip_error;
}

/// Whether a line has this number, and not only as a part of another.
bool has_number(std::string_view line, std::int64_t number) {
  const std::string digits = std::to_string(number);
  const auto is_digit = [&](std::size_t at) { return at < line.size() && line[at] >= '0' && line[at] <= '9'; };
  for (std::size_t at = line.find(digits); at != std::string_view::npos; at = line.find(digits, at + 1))
    if (!is_digit(at + digits.size()) && (at == 0 || !is_digit(at - 1))) return true;
  return false;
}

/// The line people read names the kind and every number that the kind has, so that it can be acted on.
bool line_says_it(const Error& error) {
  const std::string line = attn::message(error);
  const Numbers numbers = numbers_of(error.kind);
  return line.starts_with(attn::name(error.kind)) && line.find('\n') == std::string::npos &&
         (!numbers.index || has_number(line, error.index)) && (!numbers.value || has_number(line, error.value)) &&
         (!numbers.limit || has_number(line, error.limit));
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
  if (!numbers_are_true(batch, judged, *error, max_entries) || !says_no_more(*error))
    return Difference{"error numbers", fmt::format("{} (index {}, value {}, limit {}) is not what stands in the batch",
                                                   attn::message(*error), error->index, error->value, error->limit)};
  if (!line_says_it(*error)) return Difference{"error text", attn::message(*error)};
  return std::nullopt;
}

}  // namespace properties
