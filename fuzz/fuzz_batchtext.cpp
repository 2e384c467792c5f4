// Goal:   any bytes parse to a case or to an error that points into them; a case prints to a text that parses to it.
// Method: bytes -> parser -> printer -> parser; raw byte mutations and whole batches alike.
// Leaves out: what the batches mean (every other target).
#include "fuzz/target.hpp"

#include <algorithm>

namespace fuzz {

const std::string_view target_name = "fuzz_batchtext";
const Mutations target_mutations{
    .max_steps = max_steps, .malformed_percent = 20, .raw_percent = 60, .schedule_percent = 5, .fail_call_percent = 5};

void run_input(std::string_view text) {
  const auto parsed = batchtext::parse(text);
  if (!parsed) {
    const batchtext::ParseError& error = parsed.error();
    const auto lines = 1 + std::count(text.begin(), text.end(), '\n');
    require(error.line >= 1 && error.line <= lines, "an error names a line of the text");
    require(error.column >= 1 && error.column <= static_cast<std::int64_t>(text.size()) + 1, "an error names a column");
    require(!error.what.empty(), "an error says what is wrong");
    return;
  }
  require(!parsed->steps.empty(), "a case has a step");
  const std::string canonical = batchtext::print(*parsed);
  require(canonical.size() <= text.size() + 1, "the canonical text is no longer than what it came from");
  const auto again = batchtext::parse(canonical);
  require(again.has_value(), "the canonical text parses");
  require(*again == *parsed, "the canonical text parses to the same case");
  require(batchtext::print(*again) == canonical, "the canonical text prints to itself");
}

}  // namespace fuzz
