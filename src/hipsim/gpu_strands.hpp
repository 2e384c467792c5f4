#pragma once

#include "watch.hpp"

namespace hipsim {

/// Ends the strands that GPU threads of operations of `owner` have run as: nothing runs as that any more.
void forget_strands(watch::Strand owner);

}  // namespace hipsim
