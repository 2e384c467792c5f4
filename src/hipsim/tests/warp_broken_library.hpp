#pragma once

// A library compiled without hipsim's options.

/// How many lanes are here with a predicate that is not 0.
int count_without_options(int predicate);
/// Calls `function` from a frame that no frame pointer leads to.
int call_without_frames(int (*function)(int), int value);
