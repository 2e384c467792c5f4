// The structured mutator in libFuzzer's interface.
#include "fuzz/mutate.hpp"

#include <cstring>

extern "C" {

/// The engine's own byte mutation; engines without one leave it out.
__attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned int seed);
std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data1, std::size_t size1, const std::uint8_t* data2,
                                      std::size_t size2, std::uint8_t* out, std::size_t max_out_size,
                                      unsigned int seed);
}

namespace {

/// Room for the shortest text, `attnfuzz 1`.
constexpr std::size_t least_size = 16;

std::string_view view(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string_view{} : std::string_view{reinterpret_cast<const char*>(data), size};
}

std::size_t put(const std::string& text, std::uint8_t* out) {
  std::memcpy(out, text.data(), text.size());
  return text.size();
}

}  // namespace

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned int seed) {
  properties::Random random{seed};
  const bool raw = LLVMFuzzerMutate != nullptr && random.chance(fuzz::target_mutations.raw_percent);
  if (raw) return LLVMFuzzerMutate(data, size, max_size);
  if (max_size < least_size) return size;
  return put(fuzz::mutate(view(data, size), max_size, fuzz::target_mutations, random), data);
}

std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data1, std::size_t size1, const std::uint8_t* data2,
                                      std::size_t size2, std::uint8_t* out, std::size_t max_out_size,
                                      unsigned int seed) {
  properties::Random random{seed};
  if (max_out_size < least_size) return 0;
  return put(fuzz::cross_over(view(data1, size1), view(data2, size2), max_out_size, fuzz::target_mutations, random),
             out);
}
