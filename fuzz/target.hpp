#pragma once

#include "batchtext/batchtext.hpp"
#include "fuzz/features.hpp"
#include "properties/check.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

/// What a fuzz target is made of. A target's file says what it does with one input; this supplies the rest, for
/// libFuzzer and for engines that speak its interface. The input is the text form, nothing else.
namespace fuzz {

/// Array entries one build may produce: a batch above it is refused, so that an execution stays in the microseconds.
inline constexpr std::int64_t max_entries = std::int64_t{1} << 12;
/// Steps of a case that run; more add time but no state that two neighbours do not have.
inline constexpr std::size_t max_steps = 3;

/// What the structured mutator may do to a target's inputs.
struct Mutations {
  std::size_t max_steps = 1;
  int malformed_percent = 0;  ///< how often raw overrides are broken on purpose
  int raw_percent = 0;        ///< how often bytes are changed instead
  int schedule_percent = 2;   ///< how often a step gets another schedule_seed: only a device has a use for one
  int fail_call_percent = 0;  ///< how often it gets another fail_call, or none
};

/// Aborts with the report of a finding, if there is one whose id the environment's ATTNFUZZ_MUTE does not name ("C1
/// W1").
void require(const std::optional<properties::Finding>& finding, const batchtext::Case& parsed);

/// Aborts with `what` unless `holds`.
void require(bool holds, std::string_view what);

/// The file a replay runs, for the report's command.
void set_source(std::string_view file);

/// Says, once and on stderr, why nothing is checked here, for a target that lacks what it checks on.
void skip(std::string_view reason);
[[nodiscard]] bool is_skipped();

// Each target defines these three.
extern const std::string_view target_name;
extern const Mutations target_mutations;
void run_input(std::string_view text);

}  // namespace fuzz

/// A target on parsed cases: texts that do not parse are passed over, and the steps that run are `parsed`'s.
#define FUZZ_CASES(name, mutations)                                                                          \
  namespace fuzz {                                                                                           \
  const std::string_view target_name = "fuzz_" #name;                                                        \
  const Mutations target_mutations = mutations;                                                              \
  static void run_case(const batchtext::Case& parsed);                                                       \
  void run_input(std::string_view text) {                                                                    \
    auto parsed = batchtext::parse(text);                                                                    \
    if (!parsed) return mark_no_case();                                                                      \
    if (parsed->steps.size() > target_mutations.max_steps) parsed->steps.resize(target_mutations.max_steps); \
    run_case(*parsed);                                                                                       \
  }                                                                                                          \
  }                                                                                                          \
  static void fuzz::run_case(const batchtext::Case& parsed)
