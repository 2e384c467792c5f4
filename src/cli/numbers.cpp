#include "cli/numbers.hpp"

#include <cstddef>

namespace cli {

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3 + (number < 0 ? 1U : 0U);) digits.insert(at -= 3, 1, ',');
  return digits;
}

}  // namespace cli
