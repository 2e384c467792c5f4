#pragma once

#include "properties/invariants.hpp"

#include <bitset>

namespace properties {

/// Kinds of errors, as a set.
using ErrorKinds = std::bitset<attn::Error::num_kinds>;

/// Every rule of the contract that a batch breaks, read off the contract row by row. Rules that make no sense while
/// others are broken (lengths without sound offsets) are judged only when those hold.
[[nodiscard]] ErrorKinds broken_rules(const attn::Batch& batch, std::int64_t max_entries);

/// E1. A batch that breaks no rule is built.
[[nodiscard]] Verdict legal_batches_are_built(const attn::Batch& batch, const attn::Error& error, std::int64_t max_entries);

/// E2. A batch that breaks a rule is refused (`error` is nothing when it was built), and the error names a rule it
/// breaks, with the index, value and limit that stand in the batch.
[[nodiscard]] Verdict errors_tell_the_truth(const attn::Batch& batch, const std::optional<attn::Error>& error,
                                            std::int64_t max_entries);

}  // namespace properties
