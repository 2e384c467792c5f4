#include "batchtext/batchtext.hpp"
#include "batchtext/keys.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace batchtext {
namespace {

constexpr std::int64_t int32_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t int32_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t format_version = 1;
/// Editors on Windows put it in front of UTF-8.
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

using Status = tl::expected<void, ParseError>;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// What a message may repeat of a text that can hold anything: its start, with bytes that do not print as \xNN.
std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 24;  // enough to find it again, short enough for one line
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out = "'";
  for (const char c : text.substr(0, longest)) {
    if (c >= ' ' && c <= '~') {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += digits[byte / 16];
    out += digits[byte % 16];
  }
  if (text.size() > longest) out += "...";
  return out + "'";
}

/// One line of the text, without its comment, and how far it has been read.
struct Line {
  std::string_view text;
  std::int32_t number = 1;
  std::size_t at = 0;

  [[nodiscard]] bool done() const { return at >= text.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : text[at]; }
  void skip_spaces() {
    while (!done() && is_space(text[at])) ++at;
  }
  bool eat(char c) {
    if (peek() != c || done()) return false;
    ++at;
    return true;
  }
  [[nodiscard]] std::string_view word() const {
    std::size_t end = at;
    while (end < text.size() && !is_space(text[end])) ++end;
    return text.substr(at, end - at);
  }
  [[nodiscard]] tl::unexpected<ParseError> error(std::string what) const { return error_at(at, std::move(what)); }
  [[nodiscard]] tl::unexpected<ParseError> error_at(std::size_t where, std::string what) const {
    return tl::unexpected(ParseError{number, static_cast<std::int32_t>(where) + 1, std::move(what)});
  }
};

/// Digits up to `limit`; with `k` allowed, times 1024 when one follows.
tl::expected<std::int64_t, ParseError> read_unsigned(Line& line, std::int64_t limit, bool allow_k) {
  const std::size_t start = line.at;
  if (!is_digit(line.peek())) return line.error("expected a number, found " + quoted(line.word()));
  std::int64_t value = 0;
  for (; is_digit(line.peek()); ++line.at) value = std::min(value * 10 + (line.peek() - '0'), limit + 1);
  // A k before v belongs to the kv<len> that follows.
  if (allow_k && line.peek() == 'k' && !line.text.substr(line.at).starts_with("kv")) {
    ++line.at;
    value *= kilo;
  }
  if (value > limit) return line.error_at(start, "number above " + std::to_string(limit));
  return value;
}

/// An int32, with sign. Ends at white space or the line's end.
tl::expected<std::int32_t, ParseError> read_int32(Line& line) {
  const bool negative = line.eat('-');
  const auto value = read_unsigned(line, negative ? -int32_min : int32_max, false);
  if (!value) return tl::unexpected(value.error());
  if (!line.done() && !is_space(line.peek())) return line.error("unexpected " + quoted(line.word()) + " in a number");
  return static_cast<std::int32_t>(negative ? -*value : *value);
}

/// What may stand besides a list of numbers.
tl::expected<Lens, ParseError> read_lens(Line& line) {
  Lens lens;
  const std::string_view word = line.word();
  if (word == "none" || word == "batch") {
    lens.source = word == "none" ? Lens::none : Lens::from_batch;
    line.at += word.size();
    return lens;
  }
  lens.source = Lens::raw;
  while (!line.done()) {
    const auto value = read_int32(line);
    if (!value) return tl::unexpected(value.error());
    lens.values.push_back(*value);
    line.skip_spaces();
  }
  return lens;
}

/// `(count)q<len>(k)(s<len>(k))`
Status read_segment(Line& line, std::vector<Request>& requests) {
  std::int64_t count = 1;
  if (is_digit(line.peek())) {
    const auto given = read_unsigned(line, max_requests, false);
    if (!given) return tl::unexpected(given.error());
    count = *given;
  }
  const std::size_t start = line.at;
  if (!line.eat('q')) return line.error("expected q<len> in a batch, found " + quoted(line.word()));
  const auto query_len = read_unsigned(line, int32_max, true);
  if (!query_len) return tl::unexpected(query_len.error());
  std::int64_t seq_len = *query_len;
  if (line.peek() == 's' || line.peek() == 'k') {
    const bool spelt_kv = line.eat('k');
    if (spelt_kv && !line.eat('v')) return line.error("expected kv<len>, found " + quoted(line.word()));
    if (!spelt_kv) ++line.at;
    const auto given = read_unsigned(line, int32_max, true);
    if (!given) return tl::unexpected(given.error());
    seq_len = *given;
  }
  if (static_cast<std::int64_t>(requests.size()) + count > max_requests)
    return line.error_at(start, "more than " + std::to_string(max_requests) + " requests in a batch");
  const Request request{static_cast<std::int32_t>(*query_len), static_cast<std::int32_t>(seq_len)};
  if (count == 1) {
    requests.push_back(request);
  } else {
    requests.insert(requests.end(), static_cast<std::size_t>(count), request);
  }
  return {};
}

Status read_requests(Line& line, std::vector<Request>& requests) {
  const std::size_t start = line.at;
  requests.reserve(1 + static_cast<std::size_t>(std::count(line.text.begin(), line.text.end(), '_')));
  do {
    if (auto status = read_segment(line, requests); !status) return status;
  } while (line.eat('_'));
  if (!line.done() && !is_space(line.peek())) return line.error("unexpected " + quoted(line.word()) + " in a batch");
  std::int64_t tokens = 0;
  for (const Request& request : requests) tokens += request.query_len;
  if (tokens > int32_max)
    return line.error_at(start,
                         "the batch has " + std::to_string(tokens) + " query tokens, more than offsets can hold");
  return {};
}

Status read_window(Line& line, Step& step) {
  if (line.word() == "none") {
    step.config.window_left.reset();
    line.at += 4;
    return {};
  }
  const auto value = read_int32(line);
  if (!value) return tl::unexpected(value.error());
  step.config.window_left = *value;
  return {};
}

Status read_policy(Line& line, Step& step) {
  const std::string_view word = line.word();
  const auto policy = parse_chunk_policy(word);
  if (!policy) return line.error("chunk_policy is equal_share, packed, mla or none, not " + quoted(word));
  step.config.chunk_policy = *policy;
  line.at += word.size();
  return {};
}

template <class Into>
Status read_into(Line& line, Into& into) {
  const auto value = read_int32(line);
  if (!value) return tl::unexpected(value.error());
  into = *value;
  return {};
}

/// The same for a number that is not to be below `least`.
template <class Into>
Status read_at_least(Line& line, std::int32_t least, Into& into) {
  const std::size_t start = line.at;
  const auto value = read_int32(line);
  if (!value) return tl::unexpected(value.error());
  if (*value < least) return line.error_at(start, "number below " + std::to_string(least));
  into = *value;
  return {};
}

Status read_lens_into(Line& line, Lens& into) {
  auto lens = read_lens(line);
  if (!lens) return tl::unexpected(lens.error());
  into = std::move(*lens);
  return {};
}

Status read_offsets(Line& line, Step& step) {
  if (line.done()) return line.error("query_start_loc takes numbers, none or batch");
  auto lens = read_lens(line);
  if (!lens) return tl::unexpected(lens.error());
  if (lens->source != Lens::from_batch) step.query_start_loc = std::move(lens->values);
  return {};
}

Status read_value(Line& line, Key key, Step& step) {
  switch (key) {
    using enum Key;
    case decode_threshold:
      return read_into(line, step.config.decode_threshold);
    case workspace_tokens:
      return read_into(line, step.config.workspace_tokens);
    case chunk_policy:
      return read_policy(line, step);
    case chunk_alignment:
      return read_into(line, step.config.chunk_alignment);
    case window_left:
      return read_window(line, step);
    case batch:
      return line.done() ? Status{} : read_requests(line, step.requests);
    case num_reqs:
      return read_into(line, step.num_reqs);
    case query_start_loc:
      return read_offsets(line, step);
    case seq_lens:
      return read_lens_into(line, step.seq_lens);
    case seq_lens_upper_bound:
      return read_lens_into(line, step.seq_lens_upper_bound);
    case num_actual_tokens:
      return read_into(line, step.num_actual_tokens);
    case max_query_len:
      return read_into(line, step.max_query_len);
    case max_seq_len:
      return read_into(line, step.max_seq_len);
    case schedule_seed:
      return read_at_least(line, 0, step.schedule_seed);
    case fail_call:
      return read_at_least(line, 1, step.fail_call);
  }
  return {};
}

/// Reads a text line by line into steps.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  tl::expected<Case, ParseError> run() {
    if (auto status = read_version(); !status) return tl::unexpected(status.error());
    Case parsed;
    parsed.steps.emplace_back();
    while (next_line()) {
      if (auto status = read_line(parsed); !status) return tl::unexpected(status.error());
    }
    return parsed;
  }

 private:
  /// Moves to the next line that holds more than white space and a comment.
  bool next_line() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      line_.text = rest_.substr(0, end);
      line_.text = line_.text.substr(0, std::min(line_.text.find('#'), line_.text.size()));
      line_.at = 0;
      ++line_.number;
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      line_.skip_spaces();
      if (!line_.done()) return true;
    }
    return false;
  }

  Status read_version() {
    // PowerShell's `>` writes this; its bytes would read as a word nobody has typed.
    if (rest_.starts_with("\xFF\xFE") || rest_.starts_with("\xFE\xFF"))
      return line_.error_at(0, "the text is UTF-16, expected UTF-8 or ASCII");
    if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
    line_.number = 0;
    if (!next_line()) {
      line_.number = std::max(line_.number, 1);
      return line_.error_at(0, "empty, expected 'attnfuzz 1'");
    }
    if (line_.word() != "attnfuzz") return line_.error("expected 'attnfuzz 1', found " + quoted(line_.word()));
    line_.at += 8;
    line_.skip_spaces();
    const std::size_t start = line_.at;
    const auto version = read_int32(line_);
    if (!version) return tl::unexpected(version.error());
    if (*version != format_version)
      return line_.error_at(start, "format version " + std::to_string(*version) + ", this program reads 1");
    return expect_end();
  }

  Status read_line(Case& parsed) {
    const std::string_view word = line_.word();
    if (word == "then") return read_then(parsed);
    const auto found = std::find(key_names.begin(), key_names.end(), word);
    if (found == key_names.end()) return line_.error("unknown key " + quoted(word));
    const auto key = static_cast<Key>(found - key_names.begin());
    if (seen_[static_cast<std::size_t>(key)]) return line_.error("second " + quoted(word) + " in one step");
    seen_[static_cast<std::size_t>(key)] = true;
    line_.at += word.size();
    line_.skip_spaces();
    if (auto status = read_value(line_, key, parsed.steps.back()); !status) return status;
    return expect_end();
  }

  Status read_then(Case& parsed) {
    if (static_cast<std::int64_t>(parsed.steps.size()) == max_steps)
      return line_.error("more than " + std::to_string(max_steps) + " steps");
    line_.at += 4;
    const attn::Config settings = parsed.steps.back().config;
    parsed.steps.emplace_back();
    parsed.steps.back().config = settings;
    seen_.fill(false);
    return expect_end();
  }

  Status expect_end() {
    line_.skip_spaces();
    if (line_.done()) return {};
    return line_.error("unexpected " + quoted(line_.word()) + " behind the value");
  }

  std::string_view rest_;
  Line line_;
  std::array<bool, num_keys> seen_{};
};

}  // namespace

std::string message(const ParseError& error, std::string_view file) {
  std::string line{file};
  line += ':' + std::to_string(error.line) + ':' + std::to_string(error.column) + ": " + error.what;
  return line;
}

tl::expected<Case, ParseError> parse(std::string_view text) {
  // A last newline does not count, so that a canonical text, which ends in one, is never longer than what it came from.
  const std::size_t size = text.ends_with('\n') ? text.size() - 1 : text.size();
  if (static_cast<std::int64_t>(size) > max_text_bytes)
    return tl::unexpected(ParseError{1, 1, "longer than " + std::to_string(max_text_bytes) + " bytes"});
  return Parser{text}.run();
}

tl::expected<std::vector<Request>, ParseError> parse_requests(std::string_view spec) {
  if (static_cast<std::int64_t>(spec.size()) > max_text_bytes)
    return tl::unexpected(ParseError{1, 1, "longer than " + std::to_string(max_text_bytes) + " bytes"});
  Line line{spec};
  std::vector<Request> requests;
  if (auto status = read_requests(line, requests); !status) return tl::unexpected(status.error());
  if (!line.done()) return line.error("unexpected " + quoted(line.text.substr(line.at)) + " in a batch");
  return requests;
}

std::optional<attn::ChunkPolicy> parse_chunk_policy(std::string_view name) {
  for (int policy = 0; policy < attn::num_chunk_policies; ++policy)
    if (attn::name(static_cast<attn::ChunkPolicy>(policy)) == name) return static_cast<attn::ChunkPolicy>(policy);
  return std::nullopt;
}

}  // namespace batchtext
