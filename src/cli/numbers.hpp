#pragma once

#include <cstdint>
#include <string>

namespace cli {

/// 1234567 as `1,234,567`.
[[nodiscard]] std::string grouped(std::int64_t number);

}  // namespace cli
