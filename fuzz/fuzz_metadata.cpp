// Goal:   whatever the batch, each context token is gathered once and no chunk overruns the workspace.
// Method: text -> batch -> production builder; judged by counting and by a naive second implementation.
// Leaves out: the splits (fuzz_split), rebuilding changed batches (fuzz_metamorphic), several steps (fuzz_sequence),
//         malformed arrays (fuzz_reject).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"

FUZZ_CASES(metadata, Mutations{}) {
  require(properties::check_case(parsed, {.families = "CWO", .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
