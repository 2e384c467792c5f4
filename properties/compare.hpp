#pragma once

#include "properties/invariants.hpp"

namespace properties {

/// First entry in which two arrays differ.
template <class T>
[[nodiscard]] Verdict compare(std::string_view where, std::span<const T> found, std::span<const T> expected);
extern template Verdict compare(std::string_view, std::span<const std::int32_t>, std::span<const std::int32_t>);
extern template Verdict compare(std::string_view, std::span<const std::int64_t>, std::span<const std::int64_t>);

/// `where` was found to be another number than expected.
[[nodiscard]] Difference difference(std::string_view where, std::int64_t found, std::int64_t expected);

/// A difference when two numbers are not the same. Inline, because nearly all are.
[[nodiscard]] inline Verdict compare(std::string_view where, std::int64_t found, std::int64_t expected) {
  if (found == expected) return std::nullopt;
  return difference(where, found, expected);
}

/// The same for entry `index` of many: "chunk 3, seq_tot".
[[nodiscard]] Difference difference_at(std::string_view of, std::int64_t index, std::string_view field,
                                       std::int64_t found, std::int64_t expected);
[[nodiscard]] inline Verdict compare_at(std::string_view of, std::int64_t index, std::string_view field,
                                        std::int64_t found, std::int64_t expected) {
  if (found == expected) return std::nullopt;
  return difference_at(of, index, field, found, expected);
}

// Field by field, every array to its last entry.
[[nodiscard]] Verdict compare(std::string_view where, const attn::Region& found, const attn::Region& expected);
[[nodiscard]] Verdict compare(const attn::ChunkedContext& found, const attn::ChunkedContext& expected);
[[nodiscard]] Verdict compare(const attn::SlidingWindow& found, const attn::SlidingWindow& expected);
[[nodiscard]] Verdict compare(const attn::Metadata& found, const attn::Metadata& expected);

/// What two builds say: the same metadata, or the same error.
[[nodiscard]] Verdict compare(const tl::expected<attn::Metadata, attn::Error>& found,
                              const tl::expected<attn::Metadata, attn::Error>& expected);

}  // namespace properties
