#include "runtime.hpp"

const char* hipGetErrorName(hipError_t error) {
  switch (error) {
#define HIPSIM_ERROR(name, number, text) \
  case name:                             \
    return #name;
    HIPSIM_ERRORS(HIPSIM_ERROR)
#undef HIPSIM_ERROR
  }
  return "hipErrorUnknown";
}

const char* hipGetErrorString(hipError_t error) {
  switch (error) {
#define HIPSIM_ERROR(name, number, text) \
  case name:                             \
    return text;
    HIPSIM_ERRORS(HIPSIM_ERROR)
#undef HIPSIM_ERROR
  }
  return "unknown error";
}

hipError_t hipGetLastError() { return std::exchange(hipsim::last_error(), hipSuccess); }
hipError_t hipPeekAtLastError() { return hipsim::last_error(); }
