#include "cli/input.hpp"

#include "cli/commands.hpp"
#include "cli/files.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <limits>
#include <system_error>

namespace cli {
namespace {

namespace fs = std::filesystem;

batchtext::Case parse_file(const std::string& path) {
  auto parsed = batchtext::parse(read_text(path));
  if (!parsed) throw InputError(batchtext::message(parsed.error(), path == "-" ? "stdin" : path));
  return std::move(*parsed);
}

/// A batch in vLLM's grammar holds nothing but these; anything else was meant as a file.
bool looks_like_batch(const std::string& input) {
  return input.find_first_not_of("0123456789qskv_") == std::string::npos && input.find('q') != std::string::npos;
}

/// Malformed settings can be asked for: they show what the contract says.
constexpr std::int64_t int32_min = std::numeric_limits<std::int32_t>::min();

}  // namespace

CLI::Validator whole_number(std::int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        // CLI11 would read 010 as 8 and cut what is too long.
        const bool has_leading_zero = text.find_first_not_of("-") < text.find_first_of("123456789") && text != "0";
        const bool is_fine =
            error == std::errc{} && end == text.data() + text.size() && value >= least && !has_leading_zero;
        return is_fine ? std::string{} : fmt::format("'{}' is not a whole number of at least {}", text, least);
      },
      "");
}

CLI::Validator chunk_policy_name() {
  return CLI::Validator(
      [](const std::string& text) {
        return batchtext::parse_chunk_policy(text) ? std::string{}
                                                   : "'" + text + "' is not equal_share, packed, mla or none";
      },
      "");
}

void ConfigOptions::add_to(CLI::App& command) {
  command.add_option("--threshold", decode_threshold, "decode_threshold: longest query still called a decode")
      ->check(whole_number(int32_min));
  command.add_option("--workspace", workspace_tokens, "workspace_tokens: context tokens a pass can gather")
      ->check(whole_number(int32_min));
  command.add_option("--window", window_left, "window_left: sliding window, tokens to the left of a query")
      ->check(whole_number(int32_min));
  command.add_option("--policy", chunk_policy, "chunk_policy: equal_share, packed, mla or none")
      ->check(chunk_policy_name());
  command.add_option("--alignment", chunk_alignment, "chunk_alignment: slices of a context start on multiples of it")
      ->check(whole_number(int32_min));
}

void ConfigOptions::apply(batchtext::Case& parsed) const {
  for (batchtext::Step& step : parsed.steps) {
    if (decode_threshold) step.config.decode_threshold = *decode_threshold;
    if (workspace_tokens) step.config.workspace_tokens = *workspace_tokens;
    if (window_left) step.config.window_left = *window_left;
    if (chunk_policy) step.config.chunk_policy = batchtext::parse_chunk_policy(*chunk_policy).value();
    if (chunk_alignment) step.config.chunk_alignment = *chunk_alignment;
  }
}

std::string read_text(const std::string& path) { return read_file(path, batchtext::max_text_bytes + 1); }

std::vector<NamedCase> load_cases(const std::vector<std::string>& inputs) {
  std::vector<NamedCase> cases;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (input == "-" || fs::exists(input, error)) {
      cases.push_back({input, parse_file(input)});
      continue;
    }
    if (!looks_like_batch(input)) throw InputError(input + ": no such file, and no batch such as 8q1s1k_q16s4k_2q2k");
    auto requests = batchtext::parse_requests(input);
    if (!requests) throw InputError(batchtext::message(requests.error(), input));
    batchtext::Step step;
    step.requests = std::move(*requests);
    cases.push_back({input, {{std::move(step)}}});
  }
  return cases;
}

}  // namespace cli
