#include "attn/chunked_context.hpp"

#include "attn/checked.hpp"
#include "attn/mla_cut.hpp"
#include "attn/token_map.hpp"

#include <algorithm>
#include <limits>

namespace attn {
namespace {

/// The mutable side of a ChunkedContext.
struct Arrays {
  std::span<std::int32_t> context_lens;
  std::span<std::int32_t> chunk_starts;
  std::span<std::int32_t> seq_lens;
  std::span<std::int32_t> cu_seq_lens;
  std::span<std::int32_t> seq_tot;
  std::span<std::int32_t> max_seq_lens;
  std::span<std::int64_t> token_start;
  std::span<std::int32_t> token_to_batch;
};

/// One pass' rows.
struct Pass {
  std::int32_t* starts;
  std::int32_t* lens;
};

/// Each extend's next `share` tokens. Starts run on behind the end of a short context, as upstream's do.
void slice_equal_share(std::span<const std::int32_t> contexts, std::int64_t chunk, std::int64_t share, Pass pass) {
  const auto start = static_cast<std::int32_t>(chunk * share);
  const auto at_most = static_cast<std::int32_t>(share);
  for (std::size_t e = 0; e < contexts.size(); ++e) {
    pass.starts[e] = start;
    pass.lens[e] = std::clamp(contexts[e] - start, 0, at_most);
  }
}

std::int64_t round_up(std::int64_t tokens, std::int64_t alignment) noexcept {
  return alignment == 1 ? tokens : ceil_div(tokens, alignment) * alignment;
}

/// The places [lo, hi) of all contexts laid end to end, each from a multiple of the alignment on.
void slice_packed(std::span<const std::int32_t> contexts, std::int64_t lo, std::int64_t hi, std::int64_t alignment,
                  Pass pass) {
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < contexts.size(); ++e) {
    const std::int64_t context = contexts[e];
    const std::int64_t from = std::clamp<std::int64_t>(lo - begin, 0, context);
    const std::int64_t to = std::clamp<std::int64_t>(hi - begin, 0, context);
    pass.starts[e] = static_cast<std::int32_t>(from);
    pass.lens[e] = static_cast<std::int32_t>(to - from);
    begin += round_up(context, alignment);
  }
}

MlaCutRule mla_rule(const ChunkPlan& plan) noexcept { return {plan.chunk_tokens, plan.alignment, 1, 1}; }

/// The slices of all passes by vLLM's planner for MLA. Those that are empty start where their context ends if it has
/// been gathered, else at 0, as packed ones do.
void slice_mla(const ChunkPlan& plan, const Arrays& arrays) {
  const auto extends = static_cast<std::size_t>(plan.num_extends);
  const auto context_of = [&](std::int64_t e) -> std::int64_t {
    return arrays.context_lens[static_cast<std::size_t>(e)];
  };
  MlaCutter cutter(mla_rule(plan), plan.num_extends, context_of);
  std::int64_t chunk = -1;
  MlaRun run;
  while (cutter.next(run)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      if (i > 0 || run.opens_chunk) {
        const auto row = static_cast<std::size_t>(++chunk) * extends;
        std::fill_n(arrays.seq_lens.data() + row, extends, 0);
        std::fill_n(arrays.chunk_starts.data() + row, extends, 0);
        std::copy_n(arrays.context_lens.data(), run.req, arrays.chunk_starts.data() + row);
      }
      const auto at = static_cast<std::size_t>(chunk) * extends + static_cast<std::size_t>(run.req);
      arrays.chunk_starts[at] = static_cast<std::int32_t>(run.start + i * run.len);
      arrays.seq_lens[at] = static_cast<std::int32_t>(run.len);
    }
  }
}

/// The slices of pass `chunk`, unless they were written all at once.
void slice_pass(const ChunkPlan& plan, const Arrays& arrays, std::int64_t chunk) {
  const std::int64_t row = chunk * plan.num_extends;
  const Pass pass{arrays.chunk_starts.data() + row, arrays.seq_lens.data() + row};
  switch (plan.policy) {
    case ChunkPolicy::equal_share:
      return slice_equal_share(arrays.context_lens, chunk, plan.chunk_tokens, pass);
    case ChunkPolicy::packed:
      return slice_packed(arrays.context_lens, chunk * plan.chunk_tokens, (chunk + 1) * plan.chunk_tokens,
                          plan.alignment, pass);
    case ChunkPolicy::mla:
    case ChunkPolicy::none:
      return;
  }
}

Arrays take_arrays(const ChunkPlan& plan, Arena& arena) {
  const std::int64_t chunks = plan.num_chunks;
  const std::int64_t extends = plan.num_extends;
  Arrays arrays;
  arrays.context_lens = arena.take<std::int32_t>(extends);
  arrays.chunk_starts = arena.take<std::int32_t>(chunks * extends);
  arrays.seq_lens = arena.take<std::int32_t>(chunks * extends);
  arrays.cu_seq_lens = arena.take<std::int32_t>(chunks * (extends + 1));
  arrays.seq_tot = arena.take<std::int32_t>(chunks);
  arrays.max_seq_lens = arena.take<std::int32_t>(chunks);
  arrays.token_start = arena.take<std::int64_t>(chunks + 1);
  arrays.token_to_batch = arena.take<std::int32_t>(plan.total_tokens);
  return arrays;
}

/// What follows from a pass' slices: cumulative lengths, total, maximum, owners of its tokens.
void finish_pass(const Arrays& arrays, std::int64_t chunk, std::int64_t extends) {
  const auto lens = std::span<const std::int32_t>{arrays.seq_lens}.subspan(static_cast<std::size_t>(chunk * extends),
                                                                           static_cast<std::size_t>(extends));
  const auto cumulative = arrays.cu_seq_lens.subspan(static_cast<std::size_t>(chunk * (extends + 1)),
                                                     static_cast<std::size_t>(extends + 1));
  const auto c = static_cast<std::size_t>(chunk);
  arrays.max_seq_lens[c] = accumulate_lens(lens, cumulative);
  arrays.seq_tot[c] = cumulative.back();
  arrays.token_start[c + 1] = arrays.token_start[c] + cumulative.back();
  map_tokens(cumulative, arrays.token_to_batch.data() + arrays.token_start[c]);
}

}  // namespace

std::int64_t ChunkPlan::num_entries() const noexcept {
  const std::int64_t per_chunk = 3 * num_extends + 4;
  // Saturated, so that sizes nobody could allocate compare as too large instead of wrapping.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4;
  const std::int64_t of_chunks = num_chunks > most / per_chunk ? most : num_chunks * per_chunk;
  return num_extends + of_chunks + 1 + total_tokens;
}

std::int64_t ChunkPlan::num_bytes() const noexcept {
  return Arena::bytes_for<std::int32_t>(num_extends) + 2 * Arena::bytes_for<std::int32_t>(num_chunks * num_extends) +
         Arena::bytes_for<std::int32_t>(num_chunks * (num_extends + 1)) +
         2 * Arena::bytes_for<std::int32_t>(num_chunks) + Arena::bytes_for<std::int64_t>(num_chunks + 1) +
         Arena::bytes_for<std::int32_t>(total_tokens);
}

tl::expected<ChunkPlan, Error> plan_chunks(const Batch& batch, std::int32_t first_extend,
                                           std::int32_t num_extends) noexcept {
  ChunkPlan plan;
  plan.policy = batch.config.chunk_policy;
  plan.num_extends = num_extends;
  plan.alignment = batch.config.chunk_alignment;
  if (plan.policy == ChunkPolicy::none) return plan;
  const auto seq_lens = batch.best_seq_lens();
  std::int32_t longest = 0;
  for (std::int32_t i = first_extend; i < first_extend + num_extends; ++i) {
    const std::int32_t context = context_len(batch.query_len(i), seq_lens[static_cast<std::size_t>(i)]);
    longest = std::max(longest, context);
    plan.total_tokens += context;
  }
  if (longest == 0) return plan;

  const std::int64_t workspace = batch.config.workspace_tokens;
  const std::int64_t least = plan.alignment * (plan.policy == ChunkPolicy::equal_share ? num_extends : 1);
  if (workspace < least) return tl::unexpected(Error{Error::workspace_too_small, -1, workspace, least});
  const auto context_of = [&](std::int64_t e) -> std::int64_t {
    const auto req = static_cast<std::int32_t>(first_extend + e);
    return context_len(batch.query_len(req), seq_lens[static_cast<std::size_t>(req)]);
  };
  switch (plan.policy) {
    case ChunkPolicy::equal_share:
      plan.chunk_tokens = workspace / num_extends / plan.alignment * plan.alignment;
      plan.num_chunks = ceil_div(longest, plan.chunk_tokens);
      break;
    case ChunkPolicy::packed: {
      plan.chunk_tokens = workspace / plan.alignment * plan.alignment;
      std::int64_t places = plan.total_tokens;
      if (plan.alignment > 1) {
        places = 0;
        for (std::int64_t e = 0; e < num_extends; ++e) places += round_up(context_of(e), plan.alignment);
      }
      plan.num_chunks = ceil_div(places, plan.chunk_tokens);
      break;
    }
    case ChunkPolicy::mla: {
      plan.chunk_tokens = workspace;
      MlaCutter cutter(mla_rule(plan), num_extends, context_of);
      for (MlaRun run; cutter.next(run);) plan.num_chunks += run.count - (run.opens_chunk ? 0 : 1);
      break;
    }
    case ChunkPolicy::none:
      break;
  }
  if (plan.num_chunks > int32_limit)
    return tl::unexpected(Error{Error::capacity_exceeded, -1, plan.num_chunks, int32_limit});
  return plan;
}

ChunkedContext write_chunks(const Batch& batch, std::int32_t first_extend, const ChunkPlan& plan,
                            Arena& arena) noexcept {
  const Arrays arrays = take_arrays(plan, arena);
  const auto seq_lens = batch.best_seq_lens();
  for (std::int32_t e = 0; e < plan.num_extends; ++e) {
    const std::int32_t req = first_extend + e;
    arrays.context_lens[static_cast<std::size_t>(e)] =
        context_len(batch.query_len(req), seq_lens[static_cast<std::size_t>(req)]);
  }

  arrays.token_start[0] = 0;
  if (plan.policy == ChunkPolicy::mla) slice_mla(plan, arrays);
  for (std::int64_t chunk = 0; chunk < plan.num_chunks; ++chunk) {
    slice_pass(plan, arrays, chunk);
    finish_pass(arrays, chunk, plan.num_extends);
  }

  ChunkedContext context;
  context.num_chunks = static_cast<std::int32_t>(plan.num_chunks);
  context.context_lens = arrays.context_lens;
  context.chunk_starts = {arrays.chunk_starts, plan.num_extends};
  context.seq_lens = {arrays.seq_lens, plan.num_extends};
  context.cu_seq_lens = {arrays.cu_seq_lens, plan.num_extends + 1};
  context.seq_tot = arrays.seq_tot;
  context.max_seq_lens = arrays.max_seq_lens;
  context.token_start = arrays.token_start;
  context.token_to_batch_data = arrays.token_to_batch;
  return context;
}

}  // namespace attn
