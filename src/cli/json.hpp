#pragma once

#include "attn/metadata.hpp"

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include <cstdint>

namespace cli {

/// Keeps its keys in the order they were written in: the library's.
using Json = nlohmann::ordered_json;

/// All fields under the library's names; [num_chunks][num_extends] arrays as arrays of arrays, `token_to_batch` one
/// array a chunk, `window` null without a sliding window.
[[nodiscard]] Json to_json(const attn::Metadata& metadata);

/// {"kind": "unordered", "index": .., "value": .., "limit": .., "message": ..}
[[nodiscard]] Json to_json(const attn::Error& error);

/// The metadata, or {"error": ..}.
[[nodiscard]] Json to_json(const tl::expected<attn::Metadata, attn::Error>& built);

/// Numbers in the arrays of `to_json(metadata)`: what its size grows with.
[[nodiscard]] std::int64_t num_json_entries(const attn::Metadata& metadata) noexcept;

}  // namespace cli
