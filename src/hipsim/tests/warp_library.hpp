#pragma once

#include <hip/hip_runtime.h>

// A library of device functions, in a file of its own: one place in the source for all who call it.

/// How many lanes are here with a predicate that is not 0.
__device__ int library_count(int predicate);
