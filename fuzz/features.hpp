#pragma once

#include "attn/metadata.hpp"

#include <tl/expected.hpp>

namespace fuzz {

/// Tells a coverage-guided engine what kind of batch this is: regions present, passes, boundaries met, error kind. Two
/// batches that run the same code but differ in these are both worth keeping. libFuzzer reads them as extra counters.
/// For properties::Scope::observe.
void mark_features(const attn::Batch& batch, const tl::expected<attn::Metadata, attn::Error>& built);

/// Tells it that an input is no case. Without seeds the first inputs are none, the parser is not instrumented, and an
/// engine that has seen nothing happen gives up before it asks the mutator, which draws cases of its own.
void mark_no_case();

}  // namespace fuzz
