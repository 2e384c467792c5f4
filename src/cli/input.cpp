#include "cli/input.hpp"

#include "cli/commands.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

namespace cli {
namespace {

namespace fs = std::filesystem;

struct Close {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

batchtext::Case parse_file(const std::string& path) {
  auto parsed = batchtext::parse(read_text(path));
  if (!parsed) throw InputError(batchtext::message(parsed.error(), path == "-" ? "stdin" : path));
  return std::move(*parsed);
}

/// A batch in vLLM's grammar holds nothing but these; anything else was meant as a file.
bool looks_like_batch(const std::string& input) {
  return input.find_first_not_of("0123456789qskv_") == std::string::npos && input.find('q') != std::string::npos;
}

}  // namespace

void ConfigOptions::add_to(CLI::App& command) {
  command.add_option("--threshold", decode_threshold, "decode_threshold: longest query still called a decode");
  command.add_option("--workspace", workspace_tokens, "workspace_tokens: context tokens a pass can gather");
  command.add_option("--window", window_left, "window_left: sliding window, tokens to the left of a query");
  command.add_option("--policy", chunk_policy, "chunk_policy: equal_share or packed")
      ->check(CLI::IsMember({"equal_share", "packed"}));
}

void ConfigOptions::apply(batchtext::Case& parsed) const {
  for (batchtext::Step& step : parsed.steps) {
    if (decode_threshold) step.config.decode_threshold = *decode_threshold;
    if (workspace_tokens) step.config.workspace_tokens = *workspace_tokens;
    if (window_left) step.config.window_left = *window_left;
    if (chunk_policy)
      step.config.chunk_policy = *chunk_policy == "packed" ? attn::ChunkPolicy::packed : attn::ChunkPolicy::equal_share;
  }
}

std::string read_text(const std::string& path) {
  std::error_code error;
  if (path != "-" && fs::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
  const std::unique_ptr<std::FILE, Close> file{path == "-" ? stdin : std::fopen(path.c_str(), "rb")};
  if (!file) throw InputError(fmt::format("{}: {}", path, std::system_category().message(errno)));
  std::string text;
  std::array<char, 65536> block;
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block.data(), count);
    // A byte more than the parser takes is enough for it to say so.
    if (static_cast<std::int64_t>(text.size()) > batchtext::max_text_bytes + 1) break;
  }
  if (std::ferror(file.get()) != 0) throw InputError(path + ": cannot be read");
  return text;
}

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
