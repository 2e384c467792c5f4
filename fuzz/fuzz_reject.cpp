// Goal:   a malformed batch is refused with the rule it breaks and the numbers in it, and nothing else happens.
// Method: text with raw overrides -> batch -> production builder; judged by the contract, read rule by rule.
// Leaves out: what a legal batch's metadata says (fuzz_metadata).
#include "fuzz/features.hpp"
#include "fuzz/target.hpp"

FUZZ_CASES(reject, (Mutations{.max_steps = 2, .malformed_percent = 80, .raw_percent = 10})) {
  require(properties::check_case(parsed, {.families = "", .max_entries = max_entries, .observe = mark_features}),
          parsed);
}
