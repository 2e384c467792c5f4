#pragma once

#include "properties/invariants.hpp"

#include <bitset>

namespace properties {

/// Kinds of errors, as a set.
using ErrorKinds = std::bitset<attn::Error::num_kinds>;

/// A batch by the contract.
struct Judged {
  ErrorKinds broken;                   ///< every rule it breaks
  std::vector<naive::Row> rows;        ///< naive::rows_of(batch); empty unless counts and offsets are sound
  std::vector<std::int64_t> contexts;  ///< of each extend
  std::int64_t num_passes = 0;
  std::int64_t num_entries = 0;    ///< of all arrays of the metadata, and surplus tokens; 2^62 for what is beyond
  std::int64_t overflow_req = -1;  ///< the request at which the windows' sum leaves int32
  std::int64_t overflow_sum = 0;   ///< and the sum there
};

/// Judges a batch, row by row of the contract. Rules that make no sense while others are broken (lengths without sound
/// offsets) are judged only when those hold.
[[nodiscard]] Judged judge(const attn::Batch& batch, std::int64_t max_entries);

/// Every rule of the contract that a batch breaks.
[[nodiscard]] inline ErrorKinds broken_rules(const attn::Batch& batch, std::int64_t max_entries) {
  return judge(batch, max_entries).broken;
}

/// E1. A batch that breaks no rule is built.
[[nodiscard]] Verdict legal_batches_are_built(const Judged& judged, const attn::Error& error);

/// E2. A batch that breaks a rule is refused (`error` is nothing when it was built), and the error names a rule it
/// breaks, with the index, value and limit that stand in the batch, and none where the kind has none. Its line says them.
[[nodiscard]] Verdict errors_tell_the_truth(const attn::Batch& batch, const Judged& judged,
                                            const std::optional<attn::Error>& error, std::int64_t max_entries);

}  // namespace properties
