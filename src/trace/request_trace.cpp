#include "trace/request_trace.hpp"

#include "attn/checked.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace trace {
namespace {

using batchtext::ParseError;
template <class T>
using Parsed = tl::expected<T, ParseError>;

/// A field of a line. Text without its quotes and the spaces around it.
struct Field {
  std::string_view text;
  std::int32_t line = 0;
  std::int32_t column = 0;  ///< where the field starts, quotes included
};

tl::unexpected<ParseError> error_at(const Field& field, std::string what) {
  return tl::unexpected(ParseError{field.line, field.column, std::move(what)});
}

std::string quoted(std::string_view text) {
  // Longer ones are somebody's whole file without line ends; the column says where it is.
  constexpr std::size_t longest_shown = 40;
  std::string shown = "'";
  shown += text.substr(0, longest_shown);
  shown += text.size() > longest_shown ? "...'" : "'";
  return shown;
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Walks the lines of a text, without their ends.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  }

  [[nodiscard]] std::optional<std::string_view> next() {
    if (rest_.empty()) return std::nullopt;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_;
    return line;
  }
  /// Of the line that `next` returned last, from 1.
  [[nodiscard]] std::int32_t number() const { return number_; }
  [[nodiscard]] bool only_empty_lines_left() const { return rest_.find_first_not_of("\r\n \t") == rest_.npos; }

 private:
  std::string_view rest_;
  std::int32_t number_ = 0;
};

/// The length of the quoted field that `text` starts with, quotes included; none when it does not end.
std::optional<std::size_t> quoted_length(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] != '"') continue;
    const bool is_doubled = i + 1 < text.size() && text[i + 1] == '"';
    if (!is_doubled) return i + 1;
    ++i;
  }
  return std::nullopt;
}

/// Cuts one line into `fields`. Doubled quotes stay doubled: no column that is read can hold one.
Parsed<void> split_fields(std::string_view line, std::int32_t number, std::vector<Field>& fields) {
  fields.clear();
  std::size_t at = 0;
  while (true) {
    Field field{{}, number, static_cast<std::int32_t>(at) + 1};
    std::size_t end = 0;
    if (at < line.size() && line[at] == '"') {
      const auto length = quoted_length(line.substr(at));
      if (!length) return error_at(field, "a quote that does not end on its line");
      field.text = trim(line.substr(at + 1, *length - 2));
      end = at + *length;
      if (end < line.size() && line[end] != ',') return error_at(field, "text behind the closing quote");
    } else {
      end = std::min(line.find(',', at), line.size());
      field.text = trim(line.substr(at, end - at));
    }
    fields.push_back(field);
    if (end >= line.size()) return {};
    at = end + 1;
  }
}

/// Takes a number of `digits` digits off the front of `text`.
std::optional<int> take_digits(std::string_view& text, std::size_t digits) {
  if (text.size() < digits) return std::nullopt;
  int value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool take_any_of(std::string_view& text, std::string_view chars) {
  if (text.empty() || chars.find(text.front()) == chars.npos) return false;
  text.remove_prefix(1);
  return true;
}

constexpr std::int64_t ns_per_second = 1'000'000'000;
constexpr std::int64_t ns_per_ms = 1'000'000;
constexpr std::int64_t seconds_per_day = 86400;

/// `2023-11-16` as days since 1970. Nanoseconds of years outside 1970 to 2200 come near the ends of int64.
std::optional<std::int64_t> take_days(std::string_view& text) {
  constexpr int first_year = 1970;
  constexpr int last_year = 2200;
  const auto year = take_digits(text, 4);
  if (!year || *year < first_year || *year > last_year || !take_any_of(text, "-")) return std::nullopt;
  const auto month = take_digits(text, 2);
  if (!month || !take_any_of(text, "-")) return std::nullopt;
  const auto day = take_digits(text, 2);
  if (!day) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year{*year}, std::chrono::month{static_cast<unsigned>(*month)},
                                         std::chrono::day{static_cast<unsigned>(*day)}};
  if (!date.ok()) return std::nullopt;
  return std::int64_t{std::chrono::sys_days{date}.time_since_epoch().count()};
}

/// `18:17` as seconds.
std::optional<std::int64_t> take_hours_minutes(std::string_view& text) {
  const auto hours = take_digits(text, 2);
  if (!hours || *hours > 23 || !take_any_of(text, ":")) return std::nullopt;
  const auto minutes = take_digits(text, 2);
  if (!minutes || *minutes > 59) return std::nullopt;
  return std::int64_t{*hours} * 3600 + *minutes * 60;
}

/// `.9799600` as nanoseconds; no decimals at all are 0.
std::optional<std::int64_t> take_decimals(std::string_view& text) {
  if (!take_any_of(text, ".")) return 0;
  std::int64_t unit = ns_per_second;
  std::int64_t ns = 0;
  while (unit > 1) {
    const auto digit = take_digits(text, 1);
    if (!digit) break;
    unit /= 10;
    ns += *digit * unit;
  }
  if (unit == ns_per_second) return std::nullopt;
  return ns;
}

/// `Z` or `+00:00` as seconds to take off; nothing is 0.
std::optional<std::int64_t> take_utc_offset(std::string_view& text) {
  if (text.empty() || take_any_of(text, "Z")) return 0;
  const bool is_negative = text.front() == '-';
  if (!take_any_of(text, "+-")) return std::nullopt;
  const auto seconds = take_hours_minutes(text);
  if (!seconds) return std::nullopt;
  return is_negative ? -*seconds : *seconds;
}

/// Nanoseconds since 1970.
std::optional<std::int64_t> read_timestamp(std::string_view text) {
  const auto days = take_days(text);
  if (!days || !take_any_of(text, " T")) return std::nullopt;
  const auto minutes = take_hours_minutes(text);
  if (!minutes || !take_any_of(text, ":")) return std::nullopt;
  const auto seconds = take_digits(text, 2);
  if (!seconds || *seconds > 59) return std::nullopt;
  const auto ns = take_decimals(text);
  if (!ns) return std::nullopt;
  const auto offset = take_utc_offset(text);
  if (!offset || !text.empty()) return std::nullopt;
  return (*days * seconds_per_day + *minutes + *seconds - *offset) * ns_per_second + *ns;
}

/// A whole number in [0, limit].
Parsed<std::int64_t> read_number(const Field& field, std::int64_t limit) {
  const char* const begin = field.text.data();
  const char* const end = begin + field.text.size();
  std::int64_t value = 0;
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (field.text.empty()) return error_at(field, "a whole number is missing");
  if (stop != end || code == std::errc::invalid_argument)
    return error_at(field, quoted(field.text) + " is not a whole number");
  if (field.text.front() == '-') return error_at(field, quoted(field.text) + " is negative");
  if (code == std::errc::result_out_of_range || value > limit)
    return error_at(field, quoted(field.text) + " is above " + std::to_string(limit));
  return value;
}

Parsed<std::int64_t> read_time(const Field& field, bool is_ms) {
  if (is_ms) {
    // Half of int64's nanoseconds, as for dates: the difference of two times fits too.
    constexpr std::int64_t limit_ms = attn::int32_limit * 1000;
    const auto ms = read_number(field, limit_ms);
    if (!ms) return ms;
    return *ms * ns_per_ms;
  }
  const auto ns = read_timestamp(field.text);
  if (!ns) return error_at(field, quoted(field.text) + " is not a time like 2023-11-16 18:17:03.9799600");
  return *ns;
}

/// What a column is for, and the names it goes by.
struct ColumnNames {
  std::string_view what;
  std::array<std::string_view, 2> names;
};
constexpr ColumnNames time_names{"arrival time", {"TIMESTAMP", "timestamp_ms"}};
constexpr ColumnNames prompt_names{"prompt tokens", {"ContextTokens", "input_length"}};
constexpr ColumnNames output_names{"output tokens", {"GeneratedTokens", "output_length"}};

/// Where in a row the columns are.
struct Columns {
  std::size_t time = 0;
  std::size_t prompt = 0;
  std::size_t output = 0;
  bool time_is_ms = false;

  [[nodiscard]] std::size_t last() const { return std::max({time, prompt, output}); }
};

Parsed<std::size_t> find_column(const std::vector<Field>& header, const ColumnNames& wanted) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (std::find(wanted.names.begin(), wanted.names.end(), header[i].text) == wanted.names.end()) continue;
    if (found) return error_at(header[i], "a second column of " + std::string(wanted.what));
    found = i;
  }
  if (found) return *found;
  return error_at(header.front(), "no column of " + std::string(wanted.what) + ": " + std::string(wanted.names[0]) +
                                      " or " + std::string(wanted.names[1]));
}

Parsed<Columns> find_columns(const std::vector<Field>& header) {
  const auto time = find_column(header, time_names);
  if (!time) return tl::unexpected(time.error());
  const auto prompt = find_column(header, prompt_names);
  if (!prompt) return tl::unexpected(prompt.error());
  const auto output = find_column(header, output_names);
  if (!output) return tl::unexpected(output.error());
  return Columns{*time, *prompt, *output, header[*time].text == time_names.names[1]};
}

/// One row as it stands there: zeros are let through, the time counts from 1970 or from whatever the file counts from.
Parsed<Request> read_row(const std::vector<Field>& fields, const Columns& columns) {
  if (fields.size() <= columns.last())
    return error_at(fields.back(), "the row ends after " + std::to_string(fields.size()) + " of at least " +
                                       std::to_string(columns.last() + 1) + " fields");
  const auto time = read_time(fields[columns.time], columns.time_is_ms);
  if (!time) return tl::unexpected(time.error());
  const auto prompt = read_number(fields[columns.prompt], attn::int32_limit);
  if (!prompt) return tl::unexpected(prompt.error());
  const auto output = read_number(fields[columns.output], attn::int32_limit);
  if (!output) return tl::unexpected(output.error());
  return Request{*time, static_cast<std::int32_t>(*prompt), static_cast<std::int32_t>(*output)};
}

void add_row(Request row, RequestTrace& trace) {
  if (row.prompt_tokens == 0) {
    ++trace.num_no_prompt;
    return;
  }
  if (row.output_tokens == 0) {
    ++trace.num_no_output;
    row.output_tokens = 1;
  }
  trace.requests.push_back(row);
}

/// Services log when a request ends or from several front ends: rows need not be in order.
void order_by_arrival(std::vector<Request>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Request& a, const Request& b) { return a.arrival_ns < b.arrival_ns; });
  const std::int64_t first_ns = requests.front().arrival_ns;
  for (Request& request : requests) request.arrival_ns -= first_ns;
}

}  // namespace

Parsed<RequestTrace> parse_request_trace(std::string_view text) {
  Lines lines{text};
  std::vector<Field> fields;
  if (lines.only_empty_lines_left())
    return error_at(Field{{}, 1, 1}, "the file is empty; its first line names columns");
  const std::string_view header = *lines.next();
  if (auto split = split_fields(header, lines.number(), fields); !split) return tl::unexpected(split.error());
  const auto columns = find_columns(fields);
  if (!columns) return tl::unexpected(columns.error());

  RequestTrace trace;
  while (!lines.only_empty_lines_left()) {
    // The scheduler counts requests in int32, and so does an error its lines.
    if (lines.number() == attn::int32_limit) return error_at(Field{{}, lines.number(), 1}, "more than 2^31 - 1 lines");
    const std::string_view line = *lines.next();
    if (auto split = split_fields(line, lines.number(), fields); !split) return tl::unexpected(split.error());
    const auto row = read_row(fields, *columns);
    if (!row) return tl::unexpected(row.error());
    add_row(*row, trace);
  }
  if (trace.requests.empty())
    return error_at(Field{{}, lines.number(), 1},
                    trace.num_no_prompt > 0 ? "no row with a prompt" : "no rows below the names");
  order_by_arrival(trace.requests);
  return trace;
}

}  // namespace trace
