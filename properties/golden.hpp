#pragma once

#include "attn/error.hpp"

#include <tl/expected.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace properties {

/// What comparing one golden record with this library says.
struct GoldenOutcome {
  std::string function;                 ///< the record's `fn`
  std::optional<std::string> mismatch;  ///< the first field that differs, nothing when all agree
  /// Why the record's answer is no longer vLLM's: `mismatch` then says how the library, which follows
  /// attn::upstream_release, differs from it. Empty for every other record.
  std::string_view superseded{};
  /// Fields of the record that the library has no counterpart of, and that were not compared.
  std::vector<std::string_view> left_out{};
  /// The rule by which the library refuses a batch that the recorded release answers, if it does.
  std::optional<attn::Error> refused{};
};

/// Compares one line of a golden file (`corpus/golden/README.md`): one JSON object with `fn`, its inputs, and results
/// or `raises`. Where upstream raises or drops a context (`unordered`), the contract's answer is expected instead. An
/// error says why the line is no such record.
[[nodiscard]] tl::expected<GoldenOutcome, std::string> compare_golden(std::string_view line);

}  // namespace properties
