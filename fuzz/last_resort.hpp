#pragma once

#include <string_view>

namespace fuzz {

/// To be called with each input before it runs; the input stands until the next call.
///
/// A fuzzing engine and the sanitizers have handlers for fatal signals and for the alarm of an input that takes too
/// long. They allocate memory, and one that was called out of malloc, on a heap that is corrupted, waits for malloc's
/// lock for ever, or dies once more. From the first call on such a handler has 20 seconds; then, or at the next signal,
/// the input is written where libFuzzer would have written it, if it is what runs, and the process ends.
void expect_the_worst(std::string_view input) noexcept;

}  // namespace fuzz
