// Goal:   every request of every batch lands in exactly one region, chunk, rank and virtual batch, by its own length.
// Method: text -> batch -> the splits, the reordering, local attention and context parallelism; judged row by row and
//         key by key.
// Leaves out: chunked context and windows (fuzz_metadata), several steps (fuzz_sequence).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"

FUZZ_CASES(split, Mutations{}) {
  require(properties::check_case(parsed, {.families = "SLRE", .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
