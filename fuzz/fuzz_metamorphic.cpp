// Goal:   a batch that is permuted, cut, padded or given more workspace changes its metadata in that way and no other.
// Method: text -> batch -> production builder, on the batch and on its changed forms; the results are compared.
// Leaves out: what the metadata of one batch says by itself (fuzz_metadata).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"

FUZZ_CASES(metamorphic, Mutations{}) {
  require(properties::check_case(parsed, {.families = "M", .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
