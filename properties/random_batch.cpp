#include "properties/random_batch.hpp"

#include "properties/edit.hpp"

#include <algorithm>
#include <array>

namespace properties {
namespace {

using attn::Error;
using batchtext::Case;
using batchtext::Lens;
using batchtext::Request;
using batchtext::Step;

constexpr std::int64_t int32_max = 2147483647;

/// What a batch leans to, drawn once; a weight of 0 leaves a shape out.
struct Leaning {
  int decodes, extends, prefills, padding;  // requests of each, at most
  int cross;                                // percent of extends with seq_len < query_len
  int empty_context;                        // percent of extends with next to no context
  std::int64_t context_unit;                // contexts are multiples of this, or close
  std::int64_t most_units;
  int at_boundary;  // percent of lengths at a boundary
};

Leaning draw_leaning(Random& random, const attn::Config& config) {
  const auto up_to = [&](int most) { return random.chance(25) ? 0 : static_cast<int>(random.between(1, most)); };
  Leaning leaning{};
  const int most = random.chance(4) ? 40 : 5;
  leaning.decodes = up_to(most);
  leaning.extends = up_to(most);
  leaning.prefills = up_to(most);
  // One region alone is a shape of its own, and rare when each is drawn apart.
  int* const regions[]{&leaning.decodes, &leaning.extends, &leaning.extends, &leaning.prefills};
  if (random.chance(30)) {
    int* const alone = regions[random.below(4)];
    for (int* region : regions)
      if (region != alone) *region = 0;
    *alone = std::max(*alone, 1);
  }
  leaning.padding = random.chance(70) ? 0 : static_cast<int>(random.between(1, 6));
  leaning.cross = random.chance(15) ? 50 : 0;
  leaning.empty_context = random.pick({0, 0, 0, 20, 90, 100});
  const std::int64_t share = leaning.extends > 0 ? config.workspace_tokens / leaning.extends : 0;
  const std::int64_t units[]{1, 16, share, config.workspace_tokens};
  // Contexts of a few hundred tokens show every shape that long ones have, at a price a fuzzer can pay.
  constexpr std::int64_t longest = 256;
  leaning.context_unit = std::clamp<std::int64_t>(units[random.below(4)], 1, longest);
  leaning.most_units = std::max<std::int64_t>(1, longest / leaning.context_unit / random.pick({1, 4, 32}));
  leaning.at_boundary = random.pick({0, 30, 100});
  return leaning;
}

std::int64_t draw_context(Random& random, const Leaning& leaning) {
  if (leaning.empty_context == 100) return 0;
  if (random.chance(leaning.empty_context)) return random.below(2);
  const std::int64_t context = leaning.context_unit * random.between(0, std::min<std::int64_t>(leaning.most_units, 16));
  return std::max<std::int64_t>(0, context + random.between(-1, 1));
}

std::int64_t draw_long_query(Random& random, const Leaning& leaning, const Step& step) {
  const std::int64_t shortest = std::int64_t{step.config.decode_threshold} + 1;
  if (random.chance(leaning.at_boundary)) return shortest + random.below(2);
  return shortest + random.below(random.pick({2, 20, 200}));
}

Request draw_decode(Random& random, const Step& step, const Leaning& leaning) {
  const std::int64_t threshold = step.config.decode_threshold;
  const std::int64_t query_len =
      random.chance(70) ? threshold : random.between(random.chance(10) ? 0 : 1, std::max<std::int64_t>(threshold, 1));
  const std::int64_t longest = random.chance(2) ? int32_max - threshold : 5000;
  const std::int64_t context =
      random.chance(leaning.at_boundary) ? draw_context(random, leaning) : random.between(longest / 2, longest);
  return {clamp_length(std::min(query_len, threshold)), clamp_length(query_len + context)};
}

Request draw_extend(Random& random, const Step& step, const Leaning& leaning) {
  const std::int64_t query_len = draw_long_query(random, leaning, step);
  if (random.chance(leaning.cross)) return {clamp_length(query_len), clamp_length(random.below(query_len))};
  // Now and then a short row among the extends: its class comes from where it stands.
  const std::int64_t shown = random.chance(5) ? random.between(0, step.config.decode_threshold) : query_len;
  return {clamp_length(shown), clamp_length(shown + draw_context(random, leaning))};
}

void draw_bounds(Random& random, Step& step) {
  const int kind = static_cast<int>(random.below(100));
  if (kind < 50) return;  // exact lengths alone
  if (kind < 62) {
    step.seq_lens.source = Lens::none;
    step.seq_lens_upper_bound.source = Lens::from_batch;
    return;
  }
  if (kind < 70) {
    step.seq_lens_upper_bound.source = Lens::from_batch;
    return;
  }
  // Asynchronous scheduling: never below exact, and exact for prefills.
  step.seq_lens_upper_bound.source = Lens::raw;
  for (const Request& request : step.requests) {
    const bool prefill = request.query_len > step.config.decode_threshold && request.seq_len == request.query_len;
    const std::int64_t slack = prefill && !random.chance(5) ? 0 : random.pick({0, 0, 1, 3, 8, 40});
    step.seq_lens_upper_bound.values.push_back(clamp_length(request.seq_len + slack));
  }
}

/// The scalars above what they have to be, as warm-up steps, steps of a captured size and stale counts have them.
void loosen_scalars(Random& random, Step& step) {
  const batchtext::Arrays arrays{step};
  if (random.chance(15)) pad_to_captured_size(random, step);
  if (random.chance(15)) step.max_query_len = clamp_length(arrays.batch().max_query_len + random.between(1, 9));
  if (random.chance(15)) step.max_seq_len = clamp_length(arrays.batch().max_seq_len + random.between(1, 4000));
}

void leave_lengths_out(Random& random, Step& step) {
  const auto is_short = [&](const Request& request) { return request.query_len <= step.config.decode_threshold; };
  if (!std::all_of(step.requests.begin(), step.requests.end(), is_short) || !random.chance(30)) return;
  step.seq_lens = step.seq_lens_upper_bound = Lens{};
}

/// Takes every context away but one.
void leave_one_context(Random& random, Step& step) {
  if (step.requests.empty()) return;
  const std::int64_t kept = random.below(static_cast<std::int64_t>(step.requests.size()));
  for (std::size_t i = 0; i < step.requests.size(); ++i) {
    Request& request = step.requests[i];
    const bool is_extend = request.query_len > step.config.decode_threshold && request.seq_len > request.query_len;
    // One below the query: without a context, but no prefill.
    if (is_extend && static_cast<std::int64_t>(i) != kept) request.seq_len = request.query_len - 1;
  }
}

void add_padding(Random& random, Step& step, int most) {
  const auto count = most > 0 ? random.below(most + 1) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // Rows that are gone keep the length they had, or none.
    step.requests.push_back({0, random.chance(50) ? 0 : clamp_length(random.below(300))});
  }
}

}  // namespace

std::int32_t clamp_length(std::int64_t length) noexcept {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(length, 0, int32_max));
}

std::uint64_t Random::next() noexcept {
  state_ += 0x9e3779b97f4a7c15;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::int64_t Random::below(std::int64_t bound) noexcept {
  if (bound < 1) return 0;
  return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
}

std::int32_t Random::pick(std::initializer_list<std::int32_t> values) noexcept {
  return values.begin()[below(static_cast<std::int64_t>(values.size()))];
}

std::int32_t draw_boundary(Random& random, const Step& step) {
  if (random.chance(2)) return clamp_length(int32_max - random.below(3));
  const attn::Config& config = step.config;
  const auto extends = std::count_if(step.requests.begin(), step.requests.end(), [&](const Request& request) {
    return request.query_len > config.decode_threshold && request.seq_len != request.query_len;
  });
  const std::int64_t share = config.workspace_tokens / std::max<std::int64_t>(extends, 1);
  const std::array<std::int64_t, 7> values{
      0, 1, config.decode_threshold, 16, share, config.workspace_tokens, config.window_left.value_or(0)};
  const std::int64_t value = values[static_cast<std::size_t>(random.below(values.size()))];
  return clamp_length(value * (random.chance(20) ? random.between(2, 4) : 1) + random.between(-1, 1));
}

Request draw_request(Random& random, const Step& step) {
  const Leaning leaning = draw_leaning(random, step.config);
  switch (random.below(10)) {
    case 0:
    case 1:
    case 2:
      return draw_decode(random, step, leaning);
    case 3:
    case 4:
    case 5:
    case 6:
      return draw_extend(random, step, leaning);
    case 7:
      return {0, clamp_length(random.below(300))};
    default: {
      const std::int32_t query_len = clamp_length(draw_long_query(random, leaning, step));
      return {query_len, query_len};
    }
  }
}

attn::Config draw_config(Random& random) {
  attn::Config config;
  config.decode_threshold = random.chance(2) ? 0 : random.pick({1, 1, 1, 2, 3, 4, 5, 8});
  config.workspace_tokens = random.pick({1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 64, 100, 128, 256, 1024, 32768, 32768});
  if (random.chance(3)) config.workspace_tokens = random.pick({0, 2147483647});
  if (random.chance(50)) config.window_left = random.pick({0, 1, 7, 16, 127, 4096});
  if (random.chance(1)) config.window_left = 2147483647;
  using attn::ChunkPolicy;
  constexpr ChunkPolicy others[]{ChunkPolicy::mla, ChunkPolicy::mla, ChunkPolicy::none};
  config.chunk_policy = random.chance(60) ? ChunkPolicy::packed : ChunkPolicy::equal_share;
  if (random.chance(10)) config.chunk_policy = others[random.below(std::ssize(others))];
  // A page of the KV cache as a rule; small ones, so that small workspaces have room for several.
  if (random.chance(20)) config.chunk_alignment = random.pick({2, 3, 4, 8, 16, 16, 16, 64});
  return config;
}

Step draw_step(Random& random) {
  Step step;
  step.config = draw_config(random);
  if (random.chance(2)) {
    // Without requests there may be one offset, or none.
    if (random.chance(50)) step.query_start_loc.emplace();
    return step;
  }
  const Leaning leaning = draw_leaning(random, step.config);
  for (int i = 0; i < leaning.decodes; ++i) step.requests.push_back(draw_decode(random, step, leaning));
  for (int i = 0; i < leaning.extends; ++i) step.requests.push_back(draw_extend(random, step, leaning));
  for (int i = 0; i < leaning.prefills; ++i) {
    const std::int32_t query_len = clamp_length(draw_long_query(random, leaning, step));
    step.requests.push_back({query_len, query_len});
  }
  if (random.chance(8)) leave_one_context(random, step);
  add_padding(random, step, leaning.padding);
  draw_bounds(random, step);
  if (!is_legal(step)) put_in_order(step);
  loosen_scalars(random, step);
  leave_lengths_out(random, step);
  return step;
}

Case draw_case(Random& random, int max_steps) {
  Case parsed;
  const auto count = max_steps == 1 ? 1 : random.between(1, max_steps);
  for (std::int64_t i = 0; i < count; ++i) {
    parsed.steps.push_back(draw_step(random));
    if (i == 0 || !random.chance(50)) continue;
    // The next step of a server: the same settings, and some of the requests gone.
    Step smaller = parsed.steps[static_cast<std::size_t>(i) - 1];
    for (auto drop = random.between(1, 4); drop > 0 && !smaller.requests.empty(); --drop)
      drop_request(smaller, static_cast<std::size_t>(random.below(static_cast<std::int64_t>(smaller.requests.size()))));
    put_in_order(smaller);
    if (is_legal(smaller)) parsed.steps.back() = std::move(smaller);
  }
  return parsed;
}

void pad_to_captured_size(Random& random, Step& step) {
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  for (const Request& request : step.requests) {
    tokens += request.query_len;
    longest = std::max<std::int64_t>(longest, request.query_len);
  }
  const std::int64_t at_full_length = std::ssize(step.requests) * longest;
  const std::int64_t next_eight = (tokens + 7) / 8 * 8;
  const std::array<std::int64_t, 4> sizes{tokens + 1, next_eight, at_full_length, tokens + random.between(1, 40)};
  step.num_actual_tokens = clamp_length(std::max(tokens, sizes[static_cast<std::size_t>(random.below(4))]));
}

bool is_builder_kind(Error::Kind kind) noexcept { return kind < Error::out_of_memory; }

Step draw_malformed(Random& random, Error::Kind kind, std::int64_t max_entries) {
  Step step;
  step.config = draw_config(random);
  const std::int32_t threshold = step.config.decode_threshold;
  const std::int32_t workspace = 1024;
  step.config.workspace_tokens = workspace;
  step.config.window_left.reset();
  // A decode, an extend and a prefill at least: something for every rule.
  for (auto i = random.between(1, 3); i > 0; --i) step.requests.push_back({threshold, threshold + 40});
  const std::size_t first_extend = step.requests.size();
  for (auto i = random.between(1, 3); i > 0; --i)
    step.requests.push_back(
        {threshold + 3, threshold + 3 + clamp_length(random.chance(40) ? 1 : random.between(1, 90))});
  const std::size_t first_prefill = step.requests.size();
  for (auto i = random.between(1, 3); i > 0; --i) step.requests.push_back({threshold + 5, threshold + 5});
  const std::size_t count = step.requests.size();
  const auto any = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));

  const batchtext::Arrays arrays{step};
  const attn::Batch& batch = arrays.batch();
  std::vector<std::int32_t> offsets(batch.query_start_loc.begin(), batch.query_start_loc.end());
  std::vector<std::int32_t> lens(batch.seq_lens.begin(), batch.seq_lens.end());
  const auto another_count = [&](std::vector<std::int32_t> values) {
    // Never none at all: of lengths that means absent.
    if (random.chance(50))
      values.push_back(values.back());
    else
      values.erase(values.begin() + static_cast<std::ptrdiff_t>(any));
    return values;
  };
  const auto by = static_cast<std::int32_t>(random.between(1, 1000));
  switch (kind) {
    case Error::negative_num_reqs:
      step.num_reqs = -by;
      // One below none: as many offsets as none are.
      if (random.chance(20)) {
        step = Step{};
        step.num_reqs = -1;
        step.query_start_loc.emplace();
      }
      break;
    case Error::offsets_count:
      step.query_start_loc = random.chance(20) ? std::vector<std::int32_t>{} : another_count(offsets);
      step.num_reqs = batch.num_reqs;
      break;
    case Error::offsets_start:
      for (std::int32_t& offset : offsets) offset += random.chance(50) ? by : by + 1;
      step.query_start_loc = offsets;
      break;
    case Error::offsets_decreasing:
      if (random.chance(30)) offsets[any] = offsets[any > 0 ? any - 1 : 0];  // a row of no token before the fall
      offsets[any + 1] = random.chance(50) ? offsets[any] - by : -2147483647 - 1;
      step.query_start_loc = offsets;
      step.num_actual_tokens = offsets.back();
      break;
    case Error::token_count_too_small:
      step.num_actual_tokens = batch.num_actual_tokens - by;
      break;
    case Error::negative_max_query_len:
      step.max_query_len = -by;
      break;
    case Error::max_query_len_too_small:
      step.max_query_len = batch.max_query_len - 1;
      break;
    case Error::seq_lens_count:
      step.seq_lens = {Lens::raw, another_count(lens)};
      break;
    case Error::upper_bound_count:
      step.seq_lens_upper_bound = {Lens::raw, another_count(lens)};
      break;
    case Error::negative_seq_len:
      // Of nothing and less than nothing, the second is to blame.
      if (random.chance(30)) std::fill_n(lens.begin(), any, 0);
      lens[any] = -by;
      step.seq_lens = {Lens::raw, lens};
      break;
    case Error::negative_upper_bound:
      lens[any] = -by;
      step.seq_lens = Lens{};
      step.seq_lens_upper_bound = {Lens::raw, lens};
      break;
    case Error::seq_len_above_bound:
      lens[any] = std::max(0, lens[any] - by);
      step.seq_lens_upper_bound = {Lens::raw, lens};
      if (lens[any] == step.requests[any].seq_len) step.seq_lens_upper_bound.values[first_extend] = 0;
      break;
    case Error::negative_max_seq_len:
      step.max_seq_len = -by;
      break;
    case Error::max_seq_len_too_small:
      step.max_seq_len = batch.max_seq_len - 1;
      break;
    case Error::missing_seq_lens:
      step.seq_lens = step.seq_lens_upper_bound = Lens{};
      break;
    case Error::unordered:
      swap_requests(step, first_extend, first_prefill);
      break;
    case Error::invalid_decode_threshold:
      step.config.decode_threshold = -by;
      break;
    case Error::invalid_workspace:
      step.config.workspace_tokens = -by;
      break;
    case Error::invalid_chunk_alignment:
      step.config.chunk_alignment = random.chance(50) ? 0 : -by;
      break;
    case Error::invalid_window:
      step.config.window_left = -by;
      break;
    case Error::workspace_too_small:
      if (step.config.chunk_policy == attn::ChunkPolicy::none) step.config.chunk_policy = attn::ChunkPolicy::packed;
      step.config.workspace_tokens = step.config.chunk_alignment - 1;
      if (step.config.chunk_policy == attn::ChunkPolicy::equal_share)
        step.config.workspace_tokens +=
            step.config.chunk_alignment * static_cast<std::int32_t>(first_prefill - first_extend - 1);
      break;
    case Error::sum_overflow:
      step.config.workspace_tokens = step.config.window_left.emplace(2147483647);
      step.requests[first_extend].seq_len = 2147483647 - by;
      insert_request(step, first_extend, step.requests[first_extend]);
      break;
    case Error::capacity_exceeded:
      // Without a plan a context makes no entries.
      if (step.config.chunk_policy == attn::ChunkPolicy::none) step.config.chunk_policy = attn::ChunkPolicy::mla;
      if (random.chance(30)) {
        step.num_actual_tokens = clamp_length(batch.num_actual_tokens + max_entries + by);
        break;
      }
      step.config.workspace_tokens = 2147483647;
      step.requests[first_extend].seq_len = clamp_length(max_entries + by + threshold + 3);
      break;
    default:
      break;
  }
  return step;
}

}  // namespace properties
