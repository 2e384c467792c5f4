#include "properties/compare.hpp"
#include "properties/invariants.hpp"
#include "properties/naive.hpp"

#include "attn/mla_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace properties {
namespace {

/// Prefills made of the batch's rows, with contexts short enough to be dealt token by token, and ranks made of its
/// numbers.
struct Prefills {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> context_lens;
  attn::MlaContextInput input;

  explicit Prefills(const Built& built) {
    constexpr std::int32_t longest = 100;
    for (const naive::Row& row : built.rows) {
      // The rows' sum fits int32, as the batch was built.
      query_start_loc.push_back(query_start_loc.back() + row.query_len);
      context_lens.push_back(row.context % longest);
    }
    const attn::Config& config = built.batch.config;
    input = {query_start_loc,
             context_lens,
             config.workspace_tokens,
             config.chunk_alignment,
             1 + built.batch.num_reqs % 4,
             1 + config.decode_threshold % 5};
  }

  [[nodiscard]] std::int64_t ranks() const { return input.dcp_size; }
  /// Tokens that all ranks get in one turn each.
  [[nodiscard]] std::int64_t round() const { return ranks() * input.interleave; }
  [[nodiscard]] std::int64_t alignment() const {
    return ranks() == 1 ? input.block_size : std::lcm(std::int64_t{input.block_size}, round());
  }
  [[nodiscard]] std::int64_t room() const { return input.workspace_tokens / ranks(); }
  /// Tokens on the fullest rank, in whole turns.
  [[nodiscard]] std::int64_t padded(std::int64_t tokens) const {
    if (ranks() == 1) return tokens;
    return (tokens / round() + (tokens % round() != 0 ? 1 : 0)) * input.interleave;
  }
};

/// A chunk that is judged, and the tokens of each context that the chunks before have gathered.
struct Judge {
  const Prefills& prefills;
  const attn::MlaContext& plan;
  std::vector<std::int64_t> gathered;

  [[nodiscard]] Verdict chunk(std::size_t c);
  [[nodiscard]] Verdict slices(std::size_t c);
  [[nodiscard]] Verdict local_parts(std::size_t c) const;
  [[nodiscard]] Verdict ends_late(std::size_t c) const;
};

std::string at(std::size_t c, std::string_view what) { return fmt::format("MLA chunk {}, {}", c, what); }

/// `offsets` are those of `lens`, and `owners` says for each token in which of them it is.
Verdict check_offsets(std::size_t c, std::string_view what, std::span<const std::int32_t> offsets,
                      std::span<const std::int32_t> lens, std::span<const std::int32_t> owners) {
  std::int64_t token = 0;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    if (auto v = compare(at(c, what), offsets[i], token)) return v;
    for (const std::int64_t end = token + lens[i]; token < end; ++token)
      if (owners[static_cast<std::size_t>(token)] != static_cast<std::int32_t>(i))
        return Difference{at(c, what), fmt::format("token {} is given to slice {}, expected {}", token,
                                                   owners[static_cast<std::size_t>(token)], i)};
  }
  return compare(at(c, what), offsets.back(), token);
}

Verdict Judge::slices(std::size_t c) {
  const attn::MlaChunk& chunk = plan.chunks[c];
  const auto starts = plan.slices_of(c, plan.starts);
  const auto lens = plan.slices_of(c, plan.seq_lens);
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const auto req = static_cast<std::size_t>(chunk.requests.first) + i;
    if (lens[i] < 1) return Difference{at(c, "slices"), fmt::format("slice {} has {} tokens", i, lens[i])};
    if (auto v = compare(at(c, fmt::format("start of request {}", req)), starts[i], gathered[req])) return v;
    if (starts[i] % prefills.alignment() != 0)
      return Difference{at(c, "slices"), fmt::format("slice {} starts at {}, off the alignment", i, starts[i])};
    gathered[req] += lens[i];
    const bool is_last = i + 1 == lens.size();
    if (!is_last && gathered[req] != prefills.context_lens[req])
      return Difference{at(c, "slices"), fmt::format("request {} goes on in another chunk, but is not the last", req)};
  }
  if (auto v = compare(at(c, "is_continuation"), chunk.is_continuation, starts[0] > 0)) return v;
  if (auto v = compare(at(c, "max_seq_len"), chunk.max_seq_len, *std::max_element(lens.begin(), lens.end()))) return v;
  const auto owners = plan.token_to_seq.subspan(static_cast<std::size_t>(chunk.first_token),
                                                static_cast<std::size_t>(chunk.num_context_tokens));
  return check_offsets(c, "cu_seq_lens", plan.offsets_of(c, plan.cu_seq_lens), lens, owners);
}

/// Every token of a slice is on one rank, in turns; each rank's part begins after what the chunks before have of it.
Verdict Judge::local_parts(std::size_t c) const {
  const attn::MlaChunk& chunk = plan.chunks[c];
  if (prefills.ranks() == 1) {
    if (!plan.local_seq_lens.empty()) return Difference{at(c, "local parts"), "there are some with one rank"};
    return compare(at(c, "local tokens"), chunk.num_local_context_tokens, chunk.num_context_tokens);
  }
  const auto starts = plan.slices_of(c, plan.starts);
  const auto lens = plan.slices_of(c, plan.seq_lens);
  const auto local_starts = plan.slices_of(c, plan.local_starts);
  const auto local_lens = plan.slices_of(c, plan.local_seq_lens);
  for (std::size_t i = 0; i < lens.size(); ++i) {
    std::vector<std::int64_t> before(static_cast<std::size_t>(prefills.ranks()));
    std::vector<std::int64_t> dealt = before;
    for (std::int64_t token = 0; token < starts[i] + lens[i]; ++token) {
      const auto rank = static_cast<std::size_t>(token / prefills.input.interleave % prefills.ranks());
      ++(token < starts[i] ? before : dealt)[rank];
    }
    for (const std::int64_t tokens : before)
      if (auto v = compare(at(c, "local_starts"), local_starts[i], tokens)) return v;
    const std::int64_t fullest = *std::max_element(dealt.begin(), dealt.end());
    const std::int64_t beyond = local_lens[i] - fullest;
    if (beyond < 0 || beyond >= prefills.input.interleave || local_lens[i] % prefills.input.interleave != 0)
      return Difference{at(c, "local_seq_lens"), fmt::format("{} for slice {}, the fullest rank has {} of its tokens",
                                                             local_lens[i], i, fullest)};
  }
  const auto owners = plan.local_token_to_seq.subspan(static_cast<std::size_t>(chunk.first_local_token),
                                                      static_cast<std::size_t>(chunk.num_local_context_tokens));
  return check_offsets(c, "cu_local_seq_lens", plan.offsets_of(c, plan.cu_local_seq_lens), local_lens, owners);
}

/// What the next chunk begins with had no room in this one, unless a request without context ended it.
Verdict Judge::ends_late(std::size_t c) const {
  std::int64_t left = prefills.room();
  for (const std::int32_t len : plan.slices_of(c, plan.seq_lens)) left -= prefills.padded(len);
  if (left < 0) return Difference{at(c, "room"), fmt::format("{} tokens too many on a rank", -left)};
  if (c + 1 == plan.chunks.size()) return std::nullopt;
  const std::int32_t next = plan.chunks[c + 1].requests.first;
  if (next > plan.chunks[c].requests.last) return std::nullopt;
  const std::int64_t rest =
      prefills.context_lens[static_cast<std::size_t>(next)] - gathered[static_cast<std::size_t>(next)];
  if (prefills.padded(rest) > left && left * prefills.ranks() < prefills.alignment()) return std::nullopt;
  return Difference{at(c, "end"),
                    fmt::format("room for {} tokens on each rank is left, and request {} goes on", left, next)};
}

Verdict Judge::chunk(std::size_t c) {
  const attn::MlaChunk& chunk = plan.chunks[c];
  if (chunk.requests.first < 0 || chunk.requests.first >= chunk.requests.last ||
      chunk.requests.last > std::ssize(prefills.context_lens))
    return Difference{at(c, "requests"), fmt::format("{} to {}", chunk.requests.first, chunk.requests.last)};
  if (auto v = slices(c)) return v;
  if (auto v = local_parts(c)) return v;
  const auto offset = [&](std::int32_t req) { return prefills.query_start_loc[static_cast<std::size_t>(req)]; };
  if (auto v = compare(at(c, "first query token"), chunk.query_tokens.first, offset(chunk.requests.first))) return v;
  if (auto v = compare(at(c, "query tokens, end"), chunk.query_tokens.last, offset(chunk.requests.last))) return v;
  if (auto v = compare(at(c, "continuation_token_end"), chunk.continuation_token_end, offset(chunk.requests.first + 1)))
    return v;
  const auto queries = plan.offsets_of(c, plan.query_start_loc);
  std::int32_t longest = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::int32_t expected =
        offset(chunk.requests.first + static_cast<std::int32_t>(i)) - chunk.query_tokens.first;
    if (auto v = compare(at(c, "query_start_loc"), queries[i], expected)) return v;
    if (i > 0) longest = std::max(longest, queries[i] - queries[i - 1]);
  }
  if (auto v = compare(at(c, "max_query_len"), chunk.max_query_len, longest)) return v;
  return ends_late(c);
}

/// Of each context, the tokens of all ranks.
Verdict check_local_contexts(const Prefills& prefills, const attn::MlaContext& plan) {
  for (std::size_t req = 0; req < prefills.context_lens.size() && prefills.ranks() > 1; ++req) {
    const auto of_ranks = plan.local_context_lens[static_cast<std::int64_t>(req)];
    if (auto v = compare("ranks of local_context_lens", std::ssize(of_ranks), prefills.ranks())) return v;
    std::vector<std::int32_t> dealt(of_ranks.size());
    for (std::int64_t token = 0; token < prefills.context_lens[req]; ++token)
      ++dealt[static_cast<std::size_t>(token / prefills.input.interleave % prefills.ranks())];
    if (auto v = compare(fmt::format("local_context_lens of request {}", req), of_ranks,
                         std::span<const std::int32_t>{dealt}))
      return v;
  }
  return std::nullopt;
}

}  // namespace

Verdict local_parts_add_up_to_the_context(const Built& built) {
  // Only there does a reader of the finding expect it, and every other batch is spared the price.
  if (built.batch.config.chunk_policy != attn::ChunkPolicy::mla) return std::nullopt;
  const Prefills prefills{built};
  attn::MlaContextBuilder builder;
  const auto plan = builder.build(prefills.input);
  const auto& contexts = prefills.context_lens;
  const bool any = std::any_of(contexts.begin(), contexts.end(), [](std::int32_t context) { return context > 0; });
  if (any && prefills.room() * prefills.ranks() < prefills.alignment()) {
    const attn::Error expected{attn::Error::workspace_too_small, -1, prefills.input.workspace_tokens,
                               prefills.alignment()};
    if (!plan && plan.error() == expected) return std::nullopt;
    return Difference{"MLA chunks", fmt::format("{}, expected {}", plan ? "planned" : attn::message(plan.error()),
                                                attn::message(expected))};
  }
  if (!plan) return Difference{"MLA chunks", attn::message(plan.error())};
  Judge judge{prefills, *plan, std::vector<std::int64_t>(contexts.size())};
  for (std::size_t c = 0; c < plan->chunks.size(); ++c)
    if (auto v = judge.chunk(c)) return v;
  for (std::size_t req = 0; req < contexts.size(); ++req)
    if (auto v = compare(fmt::format("MLA chunks, tokens of request {}", req), judge.gathered[req], contexts[req]))
      return v;
  return check_local_contexts(prefills, *plan);
}

}  // namespace properties
