// Goal:   a run that corrupts the heap ends, and leaves its input.
// Method: a target that writes over what malloc keeps at the end of the heap, and lets malloc find it: it calls abort
//         with its lock held. Built with libFuzzer and no sanitizer, for a test; of no use for fuzzing.
#include "fuzz/last_resort.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;  // with which every run begins
  fuzz::expect_the_worst({reinterpret_cast<const char*>(data), size});
  constexpr std::size_t block_size = 3000;  // above what malloc keeps apart for each size
  char* volatile last = nullptr;
  for (int i = 0; i < 200; ++i) last = static_cast<char*>(std::malloc(block_size));
  for (std::size_t i = 0; i < block_size + 16; ++i) *static_cast<volatile char*>(last + i) = '\xff';
  for (int i = 0; i < 200; ++i) last = static_cast<char*>(std::malloc(block_size));
  return last == nullptr ? 1 : 0;
}
