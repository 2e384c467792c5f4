#include "batchtext/batchtext.hpp"
#include "batchtext/keys.hpp"

#include <array>
#include <charconv>

namespace batchtext {
namespace {

void put_number(std::string& text, std::int64_t value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  text.append(digits.data(), end);
}

/// With `k` where that says the same.
void put_length(std::string& text, std::int32_t value) {
  const bool whole = value != 0 && value % kilo == 0;
  put_number(text, whole ? value / kilo : value);
  if (whole) text += 'k';
}

void put_requests(std::string& text, const std::vector<Request>& requests) {
  for (std::size_t i = 0; i < requests.size();) {
    std::size_t end = i + 1;
    while (end < requests.size() && requests[end] == requests[i]) ++end;
    if (i > 0) text += '_';
    if (end - i > 1) put_number(text, static_cast<std::int64_t>(end - i));
    text += 'q';
    put_length(text, requests[i].query_len);
    if (requests[i].seq_len != requests[i].query_len) {
      text += 's';
      put_length(text, requests[i].seq_len);
    }
    i = end;
  }
}

void put_key(std::string& text, Key key) {
  text += name_of(key);
  text += ' ';
}

void put_scalar(std::string& text, Key key, std::int64_t value) {
  put_key(text, key);
  put_number(text, value);
  text += '\n';
}

void put_list(std::string& text, Key key, const std::vector<std::int32_t>& values) {
  text += name_of(key);
  for (const std::int32_t value : values) {
    text += ' ';
    put_number(text, value);
  }
  text += '\n';
}

void put_lens(std::string& text, Key key, const Lens& lens, Lens::Source standard) {
  if (lens.source == Lens::raw) return put_list(text, key, lens.values);
  if (lens.source == standard) return;
  put_key(text, key);
  text += lens.source == Lens::none ? "none\n" : "batch\n";
}

void put_offsets(std::string& text, const std::optional<std::vector<std::int32_t>>& offsets) {
  if (!offsets) return;
  if (!offsets->empty()) return put_list(text, Key::query_start_loc, *offsets);
  put_key(text, Key::query_start_loc);
  text += "none\n";
}

void put_optional(std::string& text, Key key, const std::optional<std::int32_t>& value) {
  if (value) put_scalar(text, key, *value);
}

void put_window(std::string& text, const std::optional<std::int32_t>& window) {
  if (window) return put_scalar(text, Key::window_left, *window);
  put_key(text, Key::window_left);
  text += "none\n";
}

void put_policy(std::string& text, attn::ChunkPolicy policy) {
  put_key(text, Key::chunk_policy);
  text += name(policy);
  text += '\n';
}

/// The settings of `config` that are not those of `before`.
void put_settings(std::string& text, const attn::Config& config, const attn::Config& before) {
  using enum Key;
  if (config.decode_threshold != before.decode_threshold) put_scalar(text, decode_threshold, config.decode_threshold);
  if (config.workspace_tokens != before.workspace_tokens) put_scalar(text, workspace_tokens, config.workspace_tokens);
  if (config.chunk_policy != before.chunk_policy) put_policy(text, config.chunk_policy);
  if (config.chunk_alignment != before.chunk_alignment) put_scalar(text, chunk_alignment, config.chunk_alignment);
  if (config.window_left != before.window_left) put_window(text, config.window_left);
}

/// What a step has besides its settings.
void put_step(std::string& text, const Step& step) {
  using enum Key;
  if (!step.requests.empty()) {
    put_key(text, batch);
    put_requests(text, step.requests);
    text += '\n';
  }
  put_optional(text, num_reqs, step.num_reqs);
  put_offsets(text, step.query_start_loc);
  put_lens(text, seq_lens, step.seq_lens, Lens::from_batch);
  put_lens(text, seq_lens_upper_bound, step.seq_lens_upper_bound, Lens::none);
  put_optional(text, num_actual_tokens, step.num_actual_tokens);
  put_optional(text, max_query_len, step.max_query_len);
  put_optional(text, max_seq_len, step.max_seq_len);
  if (step.schedule_seed != 0) put_scalar(text, schedule_seed, step.schedule_seed);
  put_optional(text, fail_call, step.fail_call);
}

}  // namespace

std::string print(const Case& parsed) {
  std::string text;
  text.reserve(256);  // most cases are shorter
  print(parsed, text);
  return text;
}

void print(const Case& parsed, std::string& text) {
  text = "attnfuzz 1\n";
  const attn::Config defaults;
  const attn::Config* before = &defaults;
  for (const Step& step : parsed.steps) {
    if (before != &defaults) text += "then\n";
    put_settings(text, step.config, *before);
    put_step(text, step);
    before = &step.config;
  }
}

std::string print_requests(const std::vector<Request>& requests) {
  std::string text;
  put_requests(text, requests);
  return text;
}

}  // namespace batchtext
