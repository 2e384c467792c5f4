#pragma once

#include "attn/metadata.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <optional>

namespace attn {

/// All that is decided about a batch before the first entry is written: what the CPU path writes and the device path
/// launches. From bounds where the host has no exact lengths; then sizes are bounds too.
struct Plan {
  Split split;
  std::int32_t num_surplus_tokens = 0;  ///< num_surplus_tokens(batch)
  ChunkPlan chunks;
  std::optional<std::int32_t> window_tokens;  ///< keys of all windows, when the batch has a window_left

  /// Entries of all arrays of the metadata, and one for each surplus token, so that a builder's limit bounds those too;
  /// bytes of the arrays.
  [[nodiscard]] std::int64_t num_entries() const noexcept;
  [[nodiscard]] std::int64_t num_bytes() const noexcept;
};

/// Checks a batch and plans its metadata. Errors: those of `MetadataBuilder::build` that do not depend on a builder.
[[nodiscard]] tl::expected<Plan, Error> make_plan(const Batch& batch) noexcept;

/// A region of the batch without its offsets: requests, tokens, and the extremes of their lengths as Region has them.
/// `num_unpadded` is num_unpadded_reqs(batch).
[[nodiscard]] Region region_numbers(const Batch& batch, std::int32_t num_unpadded, std::int32_t first_req,
                                    std::int32_t num_reqs) noexcept;

/// Metadata::num_kv_tokens of a checked batch.
[[nodiscard]] std::int64_t count_kv_tokens(const Batch& batch, std::int32_t num_unpadded) noexcept;

}  // namespace attn
