#pragma once

#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"

#include <optional>
#include <string>
#include <string_view>

/// The door to the properties: every runner (gtest suites, fuzz targets, corpus replay, the program) comes in here.
namespace properties {

/// An invariant that does not hold.
struct Finding {
  std::string id;          ///< stable: "C1"
  std::string claim;       ///< the invariant as a sentence: "every context token is gathered exactly once, in order"
  std::string where;       ///< "step 2, chunk 3, extend 0"
  std::string difference;  ///< what was found and what was expected
};

/// Array entries that one build of a case may take. A batch of 16M context tokens fits; checking costs about a dozen
/// bytes an entry, so that no file takes more memory than a small machine has.
inline constexpr std::int64_t default_max_entries = std::int64_t{1} << 26;

/// Which invariants are held, and what a build may cost.
struct Scope {
  std::string_view families = "SCBWMOLRE";  ///< first letters of ids; E1 to E3, and M4 between steps, are always held
  std::int64_t max_entries = default_max_entries;
  /// Called with every step and what a fresh builder makes of it, if set.
  void (*observe)(const attn::Batch&, const tl::expected<attn::Metadata, attn::Error>&) = nullptr;
};

/// Holds the invariants against every step of a case, the steps built one after the other on one builder and each
/// on builders of its own. The first that does not hold.
[[nodiscard]] std::optional<Finding> check_case(const batchtext::Case& parsed, const Scope& scope = {});

/// The same for a text. One that does not parse is a finding with the id "text".
[[nodiscard]] std::optional<Finding> check_text(std::string_view text);

/// The id of the invariant that is being checked right now, or "build", for a process that dies in the middle of it.
[[nodiscard]] std::string_view invariant_in_progress() noexcept;

/// For a runner that holds an invariant by itself.
void set_invariant_in_progress(std::string_view id) noexcept;

/// The report of a finding: id and claim, where, what differs, the batch as a table, the command that repeats it,
/// the regression ready to paste. `command` repeats the finding; `shrinking` says what became of the case, if anything
/// did.
[[nodiscard]] std::string report(const Finding& finding, const batchtext::Case& parsed, std::string_view command,
                                 std::string_view shrinking = {});

/// The finding as a regression, ready to paste: a `.batch` file and a GoogleTest case.
[[nodiscard]] std::string regression(const Finding& finding, const batchtext::Case& parsed);

/// The batch as a table: one line for each run of equal requests, with its region and context.
[[nodiscard]] std::string table(const batchtext::Step& step);

}  // namespace properties
