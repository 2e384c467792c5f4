#pragma once

namespace hipsim {

/// A line of source. Every call of the API takes the caller's, so that a report says where a thing came from.
struct Place {
  const char* file = "";
  int line = 0;

  /// Where this is called; as a default argument, where the function is called that has it.
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

}  // namespace hipsim

/// A last parameter that fills itself with the place of the call.
#define HIPSIM_PLACE hipsim::Place place = hipsim::Place::here()
