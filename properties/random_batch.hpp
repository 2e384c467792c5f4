#pragma once

#include "attn/error.hpp"
#include "batchtext/batchtext.hpp"

#include <cstdint>
#include <initializer_list>

/// Batches at random: what RapidCheck, the fuzzers' mutator and the planted-fault runner draw from. Everything follows
/// from one seed, so that a seed is a case.
namespace properties {

/// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept;
  /// From 0 to bound - 1; 0 where there is nothing below: bounds come from settings, and those may be broken on
  /// purpose.
  std::int64_t below(std::int64_t bound) noexcept;
  /// From low to high, both included; low where high is below it.
  std::int64_t between(std::int64_t low, std::int64_t high) noexcept { return low + below(high - low + 1); }
  /// True in `percent` of 100 cases.
  bool chance(int percent) noexcept { return below(100) < percent; }
  std::int32_t pick(std::initializer_list<std::int32_t> values) noexcept;

 private:
  std::uint64_t state_;
};

/// The nearest length there is: 0 to 2^31 - 1.
[[nodiscard]] std::int32_t clamp_length(std::int64_t length) noexcept;

/// A length around one of the values at which code changes its mind: 0, 1, the threshold, a page, a share, the
/// workspace, the window, each -1, +0 or +1, a multiple; rarely near 2^31.
[[nodiscard]] std::int32_t draw_boundary(Random& random, const batchtext::Step& step);

/// One request for a step, weighted to the classes given.
[[nodiscard]] batchtext::Request draw_request(Random& random, const batchtext::Step& step);

/// A configuration: thresholds 1 to 8, workspaces from none to huge, a window in half of them, all policies, alignments
/// from 1 to 64.
[[nodiscard]] attn::Config draw_config(Random& random);

/// A batch in order, with or without padding, with exact lengths, bounds, both or (decodes only) neither. Which shapes
/// it leans to is drawn first, and some shapes are left out. Breaks no rule but, rarely, those on sizes
/// (workspace_too_small, sum_overflow, capacity_exceeded).
[[nodiscard]] batchtext::Step draw_step(Random& random);

/// One to `max_steps` steps; behind the first often a smaller one.
[[nodiscard]] batchtext::Case draw_case(Random& random, int max_steps);

/// Makes num_actual_tokens that of a step padded to a captured size: above the last offset by a few tokens, up to the
/// next multiple of 8, or to every row at the longest one's length.
void pad_to_captured_size(Random& random, batchtext::Step& step);

/// A step that breaks the rule of `kind`, one of the builder's, when built with `max_entries`.
[[nodiscard]] batchtext::Step draw_malformed(Random& random, attn::Error::Kind kind, std::int64_t max_entries);

/// Kinds `draw_malformed` knows: all that MetadataBuilder::build can answer with but out_of_memory.
[[nodiscard]] bool is_builder_kind(attn::Error::Kind kind) noexcept;

}  // namespace properties
