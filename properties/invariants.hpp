#pragma once

#include "attn/metadata.hpp"
#include "properties/naive.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The invariants of design.md, each stated once as a plain function.
namespace properties {

/// Where an invariant fails and how; nothing when it holds.
struct Difference {
  std::string where;
  std::string what;
};
using Verdict = std::optional<Difference>;

/// A batch that was built, and what came of it. Invariants that build again get the same limit.
struct Built {
  const attn::Batch& batch;
  const attn::Metadata& metadata;
  const std::vector<naive::Row>& rows;        ///< naive::rows_of(batch)
  const std::vector<std::int64_t>& contexts;  ///< naive::contexts_of(rows)
  std::int64_t max_entries = attn::MetadataBuilder::default_max_entries;
};

// Split.
Verdict regions_partition_the_batch(const Built& built);                 // S1
Verdict decodes_are_short_and_the_next_is_not(const Built& built);       // S2
Verdict no_context_stands_behind_the_first_prefill(const Built& built);  // S3
Verdict decode_only_split_reads_no_length(const Built& built);           // S4
Verdict padding_changes_no_token_count(const Built& built);              // S5
Verdict two_way_split_counts_leading_decodes(const Built& built);        // S6
Verdict prefill_chunks_are_the_longest_that_fit(const Built& built);     // S7
Verdict reordering_moves_only_the_misplaced(const Built& built);         // S8
// Chunked context.
Verdict every_context_token_is_gathered_once(const Built& built);       // C1
Verdict no_chunk_exceeds_the_workspace(const Built& built);             // C2
Verdict cumulative_lengths_add_up(const Built& built);                  // C3
Verdict token_to_batch_inverts_cumulative_lengths(const Built& built);  // C4
Verdict no_context_means_no_chunk(const Built& built);                  // C5
Verdict chunks_are_full_and_few(const Built& built);                    // C6
Verdict slices_start_on_the_alignment(const Built& built);              // C7
Verdict local_parts_add_up_to_the_context(const Built& built);          // C8
// Memory. A guarded arena ends the process where it does not hold.
Verdict builds_stay_within_their_memory(const Built& built);  // B1
// Sliding window.
Verdict window_is_the_last_tokens(const Built& built);  // W1
// Metamorphic.
Verdict permuting_requests_permutes_entries(const Built& built);       // M1
Verdict a_cut_batch_agrees_with_the_whole(const Built& built);         // M2
Verdict doubling_the_workspace_keeps_the_context(const Built& built);  // M3
Verdict leftovers_never_reach_the_next_batch(const Built& built);      // M4
// Everything at once, against the second implementation.
Verdict metadata_equals_the_naive_one(const Built& built);  // O1
// Other rooms, on inputs made from the batch.
Verdict local_attention_shows_each_query_its_chunk(const Built& built);  // L1
Verdict every_token_has_one_context_parallel_rank(const Built& built);   // R1
Verdict rooms_refuse_malformed_input(const Built& built);                // E4

/// An invariant with its stable id and its claim as a sentence.
struct Invariant {
  std::string_view id;
  std::string_view claim;
  Verdict (*holds)(const Built&);
};

/// All of the above, in that order. E1 to E3 are about refused batches: errors.hpp has E1 and E2, check.cpp E3.
[[nodiscard]] std::span<const Invariant> invariants();

}  // namespace properties
