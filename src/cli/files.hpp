#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cli {

/// Puts `text` in place of the file at `path` in one go: whoever looks sees the old file or all of the new one. Throws
/// InputError; then the old file stands.
void replace_file(const std::string& path, std::string_view text);

/// Reads a whole file, or stdin for `-`, of at most `most_bytes` and one more, which tells that there is more. Throws
/// InputError for a folder and for what cannot be read.
[[nodiscard]] std::string read_file(const std::string& path, std::int64_t most_bytes);

}  // namespace cli
