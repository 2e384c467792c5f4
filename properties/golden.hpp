#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace properties {

/// What comparing one golden record with this library says.
struct GoldenOutcome {
  std::string function;                 ///< the record's `fn`
  std::optional<std::string> mismatch;  ///< the first field that differs, nothing when all agree
};

/// Compares one line of a golden file (`corpus/golden/README.md`): one JSON object with `fn`, its inputs, and results
/// or `raises`. Where upstream raises, drops a context (`unordered`) or counts padding as prefills, the contract's
/// answer is expected instead. An error says why the line is no such record.
[[nodiscard]] tl::expected<GoldenOutcome, std::string> compare_golden(std::string_view line);

}  // namespace properties
