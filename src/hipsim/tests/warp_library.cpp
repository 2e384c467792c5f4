#include "warp_library.hpp"

int library_count(int predicate) { return __popcll(__ballot(predicate)); }
