#include "properties/check.hpp"

#include "properties/compare.hpp"
#include "properties/errors.hpp"
#include "properties/invariants.hpp"

#include <fmt/format.h>

#include <array>

namespace properties {
namespace {

/// Held twice: after a batch of its own in the table, and between the steps of a case.
constexpr Invariant leftovers_stay_behind{"M4", "leftovers of an earlier batch never reach the next one",
                                          leftovers_never_reach_the_next_batch};

constexpr std::array table_of_invariants{
    Invariant{"S1", "the regions and the padding partition the batch's requests and tokens",
              regions_partition_the_batch},
    Invariant{"S2", "every decode is at most decode_threshold long, and the first request behind them is longer",
              decodes_are_short_and_the_next_is_not},
    Invariant{"S3", "no context stands behind the first prefill", no_context_stands_behind_the_first_prefill},
    Invariant{"S4", "the split of a decode-only batch reads no length", decode_only_split_reads_no_length},
    Invariant{"S5", "appended padding changes no token count", padding_changes_no_token_count},
    Invariant{"S6", "the two-way split counts the leading decodes, uniform ones where required",
              two_way_split_counts_leading_decodes},
    Invariant{"S7", "prefill chunks are the longest runs that fit the workspace",
              prefill_chunks_are_the_longest_that_fit},
    Invariant{"S8", "reordering puts every class in its region and moves only what stands outside",
              reordering_moves_only_the_misplaced},
    Invariant{"C1", "every context token is gathered exactly once, in order", every_context_token_is_gathered_once},
    Invariant{"C2", "no chunk exceeds the workspace", no_chunk_exceeds_the_workspace},
    Invariant{"C3", "cumulative lengths start at 0, never fall and differ by the slice lengths",
              cumulative_lengths_add_up},
    Invariant{"C4", "token_to_batch inverts the cumulative lengths", token_to_batch_inverts_cumulative_lengths},
    Invariant{"C5", "there are no chunks exactly when every context is empty, or none are asked for",
              no_context_means_no_chunk},
    Invariant{"C6", "no chunk is empty, and there are as many as the policy says", chunks_are_full_and_few},
    Invariant{"C7", "every slice of a context starts on the alignment", slices_start_on_the_alignment},
    Invariant{"C8", "chunks for MLA tile each context, and its local parts add up to it",
              local_parts_add_up_to_the_context},
    Invariant{"B1", "a build stays within its memory, to the byte, also on a builder that is warm",
              builds_stay_within_their_memory},
    Invariant{"W1", "a window is the last min(s, q + left + 1) tokens, tiled exactly once", window_is_the_last_tokens},
    Invariant{"M1", "permuting requests inside a region permutes their entries and nothing else",
              permuting_requests_permutes_entries},
    Invariant{"M2", "a batch cut in two agrees with the whole", a_cut_batch_agrees_with_the_whole},
    Invariant{"M3", "twice the workspace gathers the same context in no more chunks",
              doubling_the_workspace_keeps_the_context},
    leftovers_stay_behind,
    Invariant{"O1", "the metadata equals that of the naive second implementation", metadata_equals_the_naive_one},
    Invariant{"L1", "local attention shows each query the keys of its chunk",
              local_attention_shows_each_query_its_chunk},
    Invariant{"R1", "every token belongs to exactly one context-parallel rank",
              every_token_has_one_context_parallel_rank},
    Invariant{"E4", "the other rooms refuse malformed input by its numbers, and write nothing",
              rooms_refuse_malformed_input},
};

constexpr Invariant legal_is_built{"E1", "a batch that breaks no rule is built", nullptr};
constexpr Invariant errors_are_true{"E2", "a batch that breaks a rule is refused with that rule and its numbers",
                                    nullptr};
constexpr Invariant errors_change_nothing{"E3", "a refused batch leaves the last metadata as it was", nullptr};

thread_local std::string_view in_progress;

std::optional<Finding> finding_of(const Invariant& invariant, const Verdict& verdict) {
  if (!verdict) return std::nullopt;
  return Finding{std::string{invariant.id}, std::string{invariant.claim}, verdict->where, verdict->what};
}

using Result = tl::expected<attn::Metadata, attn::Error>;

std::optional<Finding> check_refusal(const attn::Batch& batch, const Judged& judged, const Result& result,
                                     std::int64_t max_entries) {
  std::optional<attn::Error> error;
  if (!result) error = result.error();
  in_progress = "E1";
  if (error)
    if (auto finding = finding_of(legal_is_built, legal_batches_are_built(judged, *error))) return finding;
  in_progress = "E2";
  return finding_of(errors_are_true, errors_tell_the_truth(batch, judged, error, max_entries));
}

std::optional<Finding> check_built(const Built& built, std::string_view families) {
  for (const Invariant& invariant : table_of_invariants) {
    if (families.find(invariant.id[0]) == std::string_view::npos) continue;
    in_progress = invariant.id;
    if (auto finding = finding_of(invariant, invariant.holds(built))) return finding;
  }
  return std::nullopt;
}

/// The steps so far on one builder, whose buffers stay dirty in between.
class Sequence {
 public:
  explicit Sequence(const Scope& scope) : scope_(scope), used_(scope.max_entries), fresh_(scope.max_entries) {}

  std::optional<Finding> check(const batchtext::Step& step) {
    const batchtext::Arrays arrays{step};
    const attn::Batch& batch = arrays.batch();
    in_progress = "build";
    attn::MetadataBuilder fresh{scope_.max_entries};
    const Result result = fresh.build(batch);
    if (scope_.observe != nullptr) scope_.observe(batch, result);
    const Judged judged = judge(batch, scope_.max_entries);
    if (auto finding = check_refusal(batch, judged, result, scope_.max_entries)) return finding;
    if (result) {
      const Built built{batch, *result, judged.rows, judged.contexts, scope_.max_entries};
      if (auto finding = check_built(built, scope_.families)) return finding;
    }
    return check_used(batch, std::move(fresh), result);
  }

 private:
  std::optional<Finding> check_used(const attn::Batch& batch, attn::MetadataBuilder fresh, const Result& expected) {
    in_progress = "M4";
    const Result found = used_.build(batch);
    if (auto finding = finding_of(leftovers_stay_behind, compare(found, expected))) return finding;
    if (found) {
      last_used_ = *found;
      last_fresh_ = *expected;
      fresh_ = std::move(fresh);
      return std::nullopt;
    }
    in_progress = "E3";
    return last_used_ ? finding_of(errors_change_nothing, compare(*last_used_, *last_fresh_)) : std::nullopt;
  }

  Scope scope_;
  attn::MetadataBuilder used_;
  attn::MetadataBuilder fresh_;  // keeps the arrays of last_fresh_
  std::optional<attn::Metadata> last_used_;
  std::optional<attn::Metadata> last_fresh_;
};

}  // namespace

std::span<const Invariant> invariants() { return table_of_invariants; }

std::optional<Finding> check_case(const batchtext::Case& parsed, const Scope& scope) {
  Sequence sequence{scope};
  for (std::size_t i = 0; i < parsed.steps.size(); ++i) {
    auto finding = sequence.check(parsed.steps[i]);
    if (!finding) continue;
    if (parsed.steps.size() > 1) finding->where = fmt::format("step {}, {}", i + 1, finding->where);
    return finding;
  }
  in_progress = {};
  return std::nullopt;
}

std::optional<Finding> check_text(std::string_view text) {
  const auto parsed = batchtext::parse(text);
  if (parsed) return check_case(*parsed);
  return Finding{"text", "the text is a case",
                 fmt::format("line {}, column {}", parsed.error().line, parsed.error().column), parsed.error().what};
}

std::string_view invariant_in_progress() noexcept { return in_progress; }

void set_invariant_in_progress(std::string_view id) noexcept { in_progress = id; }

}  // namespace properties
