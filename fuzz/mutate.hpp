#pragma once

#include "fuzz/target.hpp"
#include "properties/random_batch.hpp"

#include <string>

/// The structured mutator: texts in, parsed, changed as batches, and printed again, so that every text it makes is
/// legal.
namespace fuzz {

/// A text like `text` but for one to a few changes; of at most `max_size` bytes, which is at least 16. In place of a
/// text that does not parse, a drawn case is changed: a target started without seeds begins with those.
[[nodiscard]] std::string mutate(std::string_view text, std::size_t max_size, const Mutations& mutations,
                                 properties::Random& random);

/// A text with steps and requests of both.
[[nodiscard]] std::string cross_over(std::string_view first, std::string_view second, std::size_t max_size,
                                     const Mutations& mutations, properties::Random& random);

}  // namespace fuzz
