#include "attn/mla_context.hpp"

#include "attn/context_parallel.hpp"
#include "attn/metadata.hpp"
#include "attn/mla_cut.hpp"
#include "attn/token_map.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace attn {
namespace {

std::optional<Error> check_settings(const MlaContextInput& input) noexcept {
  if (input.block_size < 1) return Error{Error::invalid_block_size, -1, input.block_size, 1};
  if (input.dcp_size < 1) return Error{Error::invalid_dcp_size, -1, input.dcp_size, 1};
  if (input.interleave < 1) return Error{Error::invalid_interleave, -1, input.interleave, 1};
  if (input.workspace_tokens < 0) return Error{Error::invalid_workspace, -1, input.workspace_tokens, 0};
  return std::nullopt;
}

std::optional<Error> check_requests(const MlaContextInput& input) noexcept {
  const auto offsets = input.query_start_loc;
  const auto num_reqs = static_cast<std::int64_t>(input.context_lens.size());
  if (static_cast<std::int64_t>(offsets.size()) != num_reqs + 1)
    return Error{Error::offsets_count, -1, static_cast<std::int64_t>(offsets.size()), num_reqs + 1};
  if (offsets[0] != 0) return Error{Error::offsets_start, 0, offsets[0], 0};
  for (std::size_t i = 0; i < input.context_lens.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (offsets[i + 1] < offsets[i]) return Error{Error::offsets_decreasing, index + 1, offsets[i + 1], offsets[i]};
    if (input.context_lens[i] < 0) return Error{Error::negative_seq_len, index, input.context_lens[i], 0};
  }
  return std::nullopt;
}

/// The alignment may leave int32, but not 64 bits: its factors are int32, dcp_size * interleave the product of two.
MlaCutRule rule_of(const MlaContextInput& input) noexcept {
  MlaCutRule rule;
  rule.workspace_tokens = input.workspace_tokens;
  rule.alignment = input.block_size;
  if (input.dcp_size == 1) return rule;
  rule.num_ranks = input.dcp_size;
  rule.interleave = input.interleave;
  const std::int64_t round = rule.num_ranks * rule.interleave;
  const std::int64_t shared = std::gcd(rule.alignment, round);
  if (__builtin_mul_overflow(rule.alignment / shared, round, &rule.alignment))
    rule.alignment = std::numeric_limits<std::int64_t>::max();
  return rule;
}

auto cutter_of(const MlaContextInput& input, const MlaCutRule& rule) noexcept {
  const auto context_of = [&input](std::int64_t req) -> std::int64_t {
    return input.context_lens[static_cast<std::size_t>(req)];
  };
  return MlaCutter(rule, static_cast<std::int64_t>(input.context_lens.size()), context_of);
}

/// What there will be of everything.
struct Sizes {
  std::int64_t chunks = 0;
  std::int64_t slices = 0;
  std::int64_t tokens = 0;
  std::int64_t local_tokens = 0;
  std::int64_t ranks = 0;  ///< 0: one rank alone, and no local arrays
  std::int64_t reqs = 0;

  Sizes(const MlaContextInput& input, const MlaCutRule& rule) noexcept
      : ranks(rule.num_ranks > 1 ? rule.num_ranks : 0), reqs(static_cast<std::int64_t>(input.context_lens.size())) {
    auto cutter = cutter_of(input, rule);
    for (MlaRun run; cutter.next(run);) {
      chunks += run.count - (run.opens_chunk ? 0 : 1);
      slices += run.count;
      tokens += run.len * run.count;
      local_tokens += rule.padded_len(run.len) * run.count;
    }
  }

  [[nodiscard]] std::int64_t offsets() const noexcept { return slices + chunks; }
  [[nodiscard]] std::int64_t entries() const noexcept {
    const std::int64_t of_all = chunks + 2 * slices + 2 * offsets() + tokens;
    return ranks == 0 ? of_all : of_all + 2 * slices + offsets() + local_tokens + reqs * ranks;
  }
  [[nodiscard]] std::int64_t bytes() const noexcept {
    const auto ints = [](std::int64_t count) { return Arena::bytes_for<std::int32_t>(count); };
    const std::int64_t of_all =
        Arena::bytes_for<MlaChunk>(chunks) + 2 * ints(slices) + 2 * ints(offsets()) + ints(tokens);
    return ranks == 0 ? of_all : of_all + 2 * ints(slices) + ints(offsets()) + ints(local_tokens) + ints(reqs * ranks);
  }
};

/// The mutable side of an MlaContext.
struct Arrays {
  std::span<MlaChunk> chunks;
  std::span<std::int32_t> starts, seq_lens, cu_seq_lens, query_start_loc, token_to_seq;
  std::span<std::int32_t> local_starts, local_seq_lens, cu_local_seq_lens, local_token_to_seq, local_context_lens;

  Arrays(const Sizes& sizes, Arena& arena) noexcept
      : chunks(arena.take<MlaChunk>(sizes.chunks)),
        starts(arena.take<std::int32_t>(sizes.slices)),
        seq_lens(arena.take<std::int32_t>(sizes.slices)),
        cu_seq_lens(arena.take<std::int32_t>(sizes.offsets())),
        query_start_loc(arena.take<std::int32_t>(sizes.offsets())),
        token_to_seq(arena.take<std::int32_t>(sizes.tokens)) {
    if (sizes.ranks == 0) return;
    local_starts = arena.take<std::int32_t>(sizes.slices);
    local_seq_lens = arena.take<std::int32_t>(sizes.slices);
    cu_local_seq_lens = arena.take<std::int32_t>(sizes.offsets());
    local_token_to_seq = arena.take<std::int32_t>(sizes.local_tokens);
    local_context_lens = arena.take<std::int32_t>(sizes.reqs * sizes.ranks);
  }
};

template <class T>
std::span<T> part(std::span<T> all, std::int64_t first, std::int64_t count) noexcept {
  return all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

/// The slices, and which chunk has which. Only requests and first_slice of a chunk are written.
void write_slices(const MlaContextInput& input, const MlaCutRule& rule, const Arrays& arrays) noexcept {
  std::int64_t slice = 0;
  std::int64_t chunk = -1;
  auto cutter = cutter_of(input, rule);
  for (MlaRun run; cutter.next(run);) {
    for (std::int64_t i = 0; i < run.count; ++i, ++slice) {
      const auto s = static_cast<std::size_t>(slice);
      const auto req = static_cast<std::int32_t>(run.req);
      arrays.starts[s] = static_cast<std::int32_t>(run.start + i * run.len);
      arrays.seq_lens[s] = static_cast<std::int32_t>(run.len);
      if (!arrays.local_starts.empty()) {
        arrays.local_starts[s] = static_cast<std::int32_t>(arrays.starts[s] / rule.num_ranks);
        arrays.local_seq_lens[s] = static_cast<std::int32_t>(rule.padded_len(run.len));
      }
      if (i > 0 || run.opens_chunk) {
        MlaChunk& opened = arrays.chunks[static_cast<std::size_t>(++chunk)] = {};
        opened.requests.first = req;
        opened.first_slice = slice;
      }
      arrays.chunks[static_cast<std::size_t>(chunk)].requests.last = req + 1;
    }
  }
}

/// All else of a chunk whose slices are written; `next` is where its tokens begin, and then where they end.
void finish_chunk(const MlaContextInput& input, const Arrays& arrays, std::size_t c, MlaChunk& next) noexcept {
  MlaChunk& chunk = arrays.chunks[c];
  const auto offsets = input.query_start_loc;
  const auto [first, last] = chunk.requests;
  const std::int64_t slices = last - first;
  const std::int64_t at = chunk.first_slice + static_cast<std::int64_t>(c);
  chunk.query_tokens = {offsets[static_cast<std::size_t>(first)], offsets[static_cast<std::size_t>(last)]};
  chunk.continuation_token_end = offsets[static_cast<std::size_t>(first) + 1];
  chunk.is_continuation = arrays.starts[static_cast<std::size_t>(chunk.first_slice)] > 0;

  const auto cumulative = part(arrays.cu_seq_lens, at, slices + 1);
  chunk.max_seq_len = accumulate_lens(part(arrays.seq_lens, chunk.first_slice, slices), cumulative);
  chunk.num_context_tokens = chunk.num_local_context_tokens = cumulative.back();
  chunk.first_token = next.first_token;
  map_tokens(cumulative, arrays.token_to_seq.data() + chunk.first_token);
  next.first_token += cumulative.back();

  const auto queries = part(arrays.query_start_loc, at, slices + 1);
  for (std::int64_t i = 0; i <= slices; ++i) {
    const auto entry = static_cast<std::size_t>(i);
    queries[entry] = offsets[static_cast<std::size_t>(first + i)] - chunk.query_tokens.first;
    if (i > 0) chunk.max_query_len = std::max(chunk.max_query_len, queries[entry] - queries[entry - 1]);
  }
  if (arrays.local_seq_lens.empty()) return;

  const auto local = part(arrays.cu_local_seq_lens, at, slices + 1);
  (void)accumulate_lens(part(arrays.local_seq_lens, chunk.first_slice, slices), local);
  chunk.num_local_context_tokens = local.back();
  chunk.first_local_token = next.first_local_token;
  map_tokens(local, arrays.local_token_to_seq.data() + chunk.first_local_token);
  next.first_local_token += local.back();
}

/// The tokens of each whole context on each rank, one row a request.
void write_local_contexts(const MlaContextInput& input, std::span<std::int32_t> rows) noexcept {
  const auto ranks = static_cast<std::size_t>(input.dcp_size);
  for (std::size_t req = 0; req < input.context_lens.size(); ++req)
    for (std::size_t rank = 0; rank < ranks; ++rank)
      // The input has been checked: it refuses nothing.
      (void)dcp_local_seq_lens(input.context_lens.subspan(req, 1), input.dcp_size, static_cast<std::int32_t>(rank),
                               input.interleave, rows.subspan(req * ranks + rank, 1));
}

}  // namespace

std::span<const std::int32_t> MlaContext::slices_of(std::size_t c, std::span<const std::int32_t> of_slices) const {
  return part(of_slices, chunks[c].first_slice, chunks[c].requests.last - chunks[c].requests.first);
}

std::span<const std::int32_t> MlaContext::offsets_of(std::size_t c, std::span<const std::int32_t> of_offsets) const {
  return part(of_offsets, chunks[c].first_slice + static_cast<std::int64_t>(c),
              chunks[c].requests.last - chunks[c].requests.first + std::int64_t{1});
}

tl::expected<MlaContext, Error> MlaContextBuilder::build(const MlaContextInput& input) noexcept {
  if (auto error = check_settings(input)) return tl::unexpected(*error);
  if (auto error = check_requests(input)) return tl::unexpected(*error);
  const MlaCutRule rule = rule_of(input);
  const bool any =
      std::any_of(input.context_lens.begin(), input.context_lens.end(), [](std::int32_t len) { return len > 0; });
  if (any && rule.longest_cut(rule.room()) == 0)
    return tl::unexpected(Error{Error::workspace_too_small, -1, input.workspace_tokens, rule.alignment});

  const Sizes sizes{input, rule};
  const std::int64_t limit = MetadataBuilder::default_max_entries;
  if (sizes.entries() > limit) return tl::unexpected(Error{Error::capacity_exceeded, -1, sizes.entries(), limit});
  const std::int64_t bytes = sizes.bytes();
  if (!arena_.reset(bytes)) return tl::unexpected(Error{Error::out_of_memory, -1, bytes, 0});
  const Arrays arrays{sizes, arena_};
  write_slices(input, rule, arrays);
  MlaChunk next;
  for (std::size_t c = 0; c < arrays.chunks.size(); ++c) finish_chunk(input, arrays, c, next);
  if (sizes.ranks > 0) write_local_contexts(input, arrays.local_context_lens);

  MlaContext context;
  context.chunks = arrays.chunks;
  context.starts = arrays.starts;
  context.seq_lens = arrays.seq_lens;
  context.cu_seq_lens = arrays.cu_seq_lens;
  context.query_start_loc = arrays.query_start_loc;
  context.token_to_seq = arrays.token_to_seq;
  context.local_starts = arrays.local_starts;
  context.local_seq_lens = arrays.local_seq_lens;
  context.cu_local_seq_lens = arrays.cu_local_seq_lens;
  context.local_token_to_seq = arrays.local_token_to_seq;
  context.local_context_lens = {arrays.local_context_lens, sizes.ranks};
  return context;
}

}  // namespace attn
