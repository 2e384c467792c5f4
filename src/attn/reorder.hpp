#pragma once

#include "attn/error.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <span>

namespace attn {

/// Puts a batch in the order decode, short extend, long extend, prefill with as few moves as possible: a request that
/// stands in its class' region already stays where it is, the others move in order. Writes `order` [num_reqs]: position
/// i of the reordered batch holds request order[i]. Returns whether anything moved. `order` may not overlap the inputs.
///
/// A request without computed tokens is a prefill, however short; of the others those with more than `decode_threshold`
/// scheduled tokens are long extends, the rest short extends while fewer tokens are computed than the prompt has, and
/// decodes from then on. `num_prompt_tokens` may be empty: then no request is a short extend, as in releases of vLLM
/// that did not ask for it. num_reqs = num_scheduled_tokens.size().
///
/// Errors, before anything is written: count_mismatch when a span's size differs; negative_token_count naming the
/// request; invalid_decode_threshold; capacity_exceeded above 2^31 - 1 requests. Source: vLLM's
/// reorder_batch_to_split_decodes_and_prefills.
[[nodiscard]] tl::expected<bool, Error> reorder_batch(std::span<const std::int32_t> num_scheduled_tokens,
                                                      std::span<const std::int32_t> num_computed_tokens,
                                                      std::span<const std::int32_t> num_prompt_tokens,
                                                      std::int32_t decode_threshold,
                                                      std::span<std::int32_t> order) noexcept;

}  // namespace attn
