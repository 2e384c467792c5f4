#pragma once

#include "batchtext/batchtext.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cli {

/// A case and the name people know it by: its file, its batch in vLLM's grammar, or `-`.
struct NamedCase {
  std::string name;
  batchtext::Case parsed;
};

/// The configuration keys of the text form as options (`--threshold`, `--workspace`, `--window`, `--policy`,
/// `--alignment`): given ones override what a file says.
struct ConfigOptions {
  std::optional<std::int32_t> decode_threshold;
  std::optional<std::int32_t> workspace_tokens;
  std::optional<std::int32_t> window_left;
  std::optional<std::string> chunk_policy;
  std::optional<std::int32_t> chunk_alignment;

  void add_to(CLI::App& command);
  void apply(batchtext::Case& parsed) const;
};

/// For options: an int64 in decimal, as the text form has it, of at least `least`. The option's type limits it above.
[[nodiscard]] CLI::Validator whole_number(std::int64_t least);

/// For options: the name of a chunk policy.
[[nodiscard]] CLI::Validator chunk_policy_name();

/// Reads a whole file, or stdin for `-`, up to the text form's limit. Throws InputError.
[[nodiscard]] std::string read_text(const std::string& path);

/// Each of `inputs` is a file in the text form, `-` for stdin, or a batch in vLLM's grammar; what names a file that
/// exists is a file. Throws InputError with file, line and column.
[[nodiscard]] std::vector<NamedCase> load_cases(const std::vector<std::string>& inputs);

}  // namespace cli
