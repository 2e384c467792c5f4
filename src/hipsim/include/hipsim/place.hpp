#pragma once

namespace hipsim {

/// A line of source. Every call of the API takes the caller's, so that a report says where a thing came from.
struct Place {
  const char* file = "";
  int line = 0;
};

}  // namespace hipsim

/// A last parameter that fills itself with the place of the call.
#define HIPSIM_PLACE \
  hipsim::Place place = hipsim::Place { __builtin_FILE(), __builtin_LINE() }
