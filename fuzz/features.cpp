#include "fuzz/features.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace fuzz {
namespace {

/// One counter a feature; the section's name is libFuzzer's convention on Linux. `used`, because nothing here reads
/// them: an optimiser that sees that leaves out the array and all writes to it.
constexpr std::size_t num_counters = 1024;
__attribute__((used, section("__libfuzzer_extra_counters"))) std::array<std::uint8_t, num_counters> counters;

constexpr std::size_t num_policies = attn::num_chunk_policies;
constexpr std::size_t num_boundaries = 24;

/// Where each group of features begins. A group is the product of its parts, so that combinations count.
enum Group : std::size_t {
  errors = 0,                                            // error kind
  regions = 64,                                          // 16 masks x 4 kinds of lengths x policies
  passes = regions + 64 * num_policies,                  // 8 classes of chunk counts x 8 of extends x policies
  windows = passes + 64 * num_policies,                  // 8 classes of window tokens x 4 of how many windows are cut
  boundaries = windows + 32,                             // bits of `met`, each with the policy
  no_case = boundaries + num_boundaries * num_policies,  // the input does not parse
  end = no_case + 1
};
static_assert(end <= num_counters);

void mark(std::size_t feature) { counters[feature] = 1; }

/// 0, 1, 2, 3-4, 5-8, ... as 0 to 7.
std::size_t class_of(std::int64_t count) {
  return std::min<std::size_t>(
      7, static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(count > 0 ? count + count - 1 : 0))));
}

std::size_t regions_of(const attn::Split& split) {
  return static_cast<std::size_t>((split.num_decodes > 0) | (split.num_extends > 0) << 1 |
                                  (split.num_prefills > 0) << 2 | (split.num_padding > 0) << 3);
}

/// Boundaries that requests of the batch stand on.
std::uint32_t boundaries_of(const attn::Batch& batch, const attn::Metadata& metadata) {
  std::uint32_t met = 0;
  const auto meet = [&](int boundary, bool does) { met |= static_cast<std::uint32_t>(does) << boundary; };
  const std::int64_t extends = metadata.split.num_extends;
  const std::int64_t workspace = batch.config.workspace_tokens;
  const std::int64_t share = extends > 0 ? std::max<std::int64_t>(workspace / extends, 1) : 1;
  std::int64_t with_context = 0;
  for (const std::int32_t context : metadata.context.context_lens) {
    with_context += context > 0;
    meet(0, context == 0);
    meet(1, context > 0 && context % share == 0);
    meet(2, context % share == 1);
    meet(3, context > 1 && (std::int64_t{context} + 1) % share == 0);
    meet(4, context == workspace);
    meet(5, context > 16 && context % 16 == 0);
  }
  meet(6, extends > 1 && with_context == 1);
  meet(7, extends > 0 && with_context == 0);
  const std::int32_t threshold = batch.config.decode_threshold;
  for (std::int32_t req = 0; req < batch.num_reqs; ++req) {
    const std::int32_t query_len = batch.query_len(req);
    meet(8, query_len == threshold);
    meet(9, std::int64_t{query_len} == std::int64_t{threshold} + 1);
    meet(10, query_len == 0 && req + 1 < batch.num_reqs && batch.query_len(req + 1) > 0);
    const auto lens = batch.best_seq_lens();
    if (!lens.empty()) meet(11, lens[static_cast<std::size_t>(req)] < query_len);
    if (!lens.empty()) meet(12, lens[static_cast<std::size_t>(req)] > 2147480000);
  }
  meet(13, batch.max_query_len > std::max({metadata.decode.max_query_len, metadata.extend.max_query_len,
                                           metadata.prefill.max_query_len}));
  meet(14, metadata.context.num_chunks > 0 && metadata.context.seq_tot.back() == workspace);
  meet(15, extends > 0 && workspace == extends);
  meet(16, threshold > 1);
  meet(17, attn::num_surplus_tokens(batch) > 0);
  meet(18, metadata.split.num_padding_tokens > 0);
  meet(19, batch.config.chunk_alignment > 1);
  meet(20, batch.config.chunk_alignment > 1 && workspace % batch.config.chunk_alignment != 0);
  return met;
}

void mark_window(const attn::SlidingWindow& window) {
  const auto cut =
      std::count_if(window.seq_starts.begin(), window.seq_starts.end(), [](std::int32_t start) { return start > 0; });
  const bool all = cut == static_cast<std::ptrdiff_t>(window.seq_starts.size());
  mark(windows + class_of(window.total_tokens) * 4 + (cut > 0) * 2u + (all ? 1u : 0u));
}

void mark_built(const attn::Batch& batch, const attn::Metadata& metadata) {
  const auto policy = static_cast<std::size_t>(batch.config.chunk_policy);
  const std::size_t lengths = (batch.seq_lens.empty() ? 0u : 1u) + (batch.seq_lens_upper_bound.empty() ? 0u : 2u);
  mark(regions + (regions_of(metadata.split) * 4 + lengths) * num_policies + policy);
  mark(passes + (class_of(metadata.context.num_chunks) * 8 + class_of(metadata.split.num_extends)) * num_policies +
       policy);
  if (metadata.window) mark_window(*metadata.window);
  const std::uint32_t met = boundaries_of(batch, metadata);
  for (std::size_t bit = 0; bit < num_boundaries; ++bit)
    if ((met >> bit & 1) != 0) mark(boundaries + bit * num_policies + policy);
}

}  // namespace

void mark_features(const attn::Batch& batch, const tl::expected<attn::Metadata, attn::Error>& built) {
  if (built) {
    mark_built(batch, *built);
  } else {
    mark(std::size_t{errors} + std::size_t{built.error().kind});
  }
}

void mark_no_case() { mark(no_case); }

}  // namespace fuzz
