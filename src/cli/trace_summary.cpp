#include "cli/trace_summary.hpp"

#include "cli/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace cli {
namespace {

std::string percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void print_line(std::string_view name, std::string_view value) { fmt::print("{:<22}{}\n", name, value); }

void print_requests(const trace::RequestTrace& requests, const trace::Scheduler& scheduler) {
  const trace::Counters& counters = scheduler.counters();
  print_line("requests", fmt::format("{} in the trace, {} completed", grouped(std::ssize(requests.requests)),
                                     grouped(counters.num_completed)));
  const auto note = [](std::int64_t number, std::string_view what) {
    if (number > 0) print_line("", fmt::format("{} {}", grouped(number), what));
  };
  note(requests.num_no_prompt, "rows without prompt tokens left out");
  note(requests.num_no_output, "rows without output tokens taken as one token");
  note(counters.num_rejected, fmt::format("rejected: prompt of {} tokens or more", grouped(scheduler.max_len())));
  note(counters.num_truncated, fmt::format("cut short at {} tokens", grouped(scheduler.max_len())));
}

void print_times(const Tally& tally, const trace::Scheduler& scheduler) {
  const std::int64_t num_steps = scheduler.counters().num_steps;
  print_line("steps", grouped(num_steps));
  print_line("simulated time", fmt::format("{:.1f} s", static_cast<double>(scheduler.clock_ns()) / 1e9));
  const double rate = tally.wall_s > 0 ? static_cast<double>(num_steps) / tally.wall_s : 0;
  print_line("wall time", fmt::format("{:.2f} s, {} steps/s", tally.wall_s, grouped(std::llround(rate))));
}

void print_scheduling(const trace::Counters& counters) {
  print_line("output tokens", grouped(counters.num_output_tokens));
  print_line("preemptions", fmt::format("{}, {} computed tokens thrown away", grouped(counters.num_preemptions),
                                        grouped(counters.num_preempted_tokens)));
  print_line("prefix-hit tokens", grouped(counters.num_prefix_hit_tokens));
  print_line("draft tokens", fmt::format("{}, {} accepted ({})", grouped(counters.num_draft_tokens),
                                         grouped(counters.num_accepted_tokens),
                                         percent(counters.num_accepted_tokens, counters.num_draft_tokens)));
}

void print_regions(const Tally& tally) {
  constexpr std::array<std::string_view, 3> names{"decode", "extend", "prefill"};
  RegionCount all;
  for (const RegionCount& region : tally.regions) {
    all.num_rows += region.num_rows;
    all.num_tokens += region.num_tokens;
  }
  fmt::print("\n{:<22}{:>14}{:>9}{:>16}{:>9}\n", "region", "rows", "share", "query tokens", "share");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const RegionCount& region = tally.regions[i];
    fmt::print("  {:<20}{:>14}{:>9}{:>16}{:>9}\n", names[i], grouped(region.num_rows),
               percent(region.num_rows, all.num_rows), grouped(region.num_tokens),
               percent(region.num_tokens, all.num_tokens));
  }
}

void print_step_classes(const Tally& tally) {
  constexpr std::array<std::string_view, num_step_classes> names{"empty",           "decode only",  "extend only",
                                                                 "decode, extend",  "prefill only", "decode, prefill",
                                                                 "extend, prefill", "all three"};
  std::int64_t all = 0;
  for (const std::int64_t count : tally.step_classes) all += count;
  fmt::print("\n{:<22}{:>14}{:>9}\n", "step", "steps", "share");
  for (std::size_t i = 1; i < names.size(); ++i)
    fmt::print("  {:<20}{:>14}{:>9}\n", names[i], grouped(tally.step_classes[i]), percent(tally.step_classes[i], all));
}

void print_passes(const Tally& tally) {
  const auto& equal_share = tally.passes[static_cast<std::size_t>(attn::ChunkPolicy::equal_share)];
  const auto& packed = tally.passes[static_cast<std::size_t>(attn::ChunkPolicy::packed)];
  const auto line = [](std::string_view name, std::int64_t a, std::int64_t b) {
    fmt::print("  {:<20}{:>14}{:>14}\n", name, grouped(a), grouped(b));
  };
  fmt::print("\n{:<22}{:>14}{:>14}\n", "context passes", "equal_share", "packed");
  line("in all", equal_share.num_passes, packed.num_passes);
  line("most in a step", equal_share.most, packed.most);
  line("steps without", equal_share.num_steps_without, packed.num_steps_without);
  fmt::print("  {} context tokens gathered; packed needs fewer passes in {} steps\n", grouped(tally.num_context_tokens),
             grouped(tally.num_gathering_steps_saved));
  if (tally.num_refused > 0)
    fmt::print("  {} builds refused, first at {}\n", grouped(tally.num_refused), tally.first_refusal);
}

/// The nearest-rank percentile in microseconds. Reorders the samples.
double percentile_us(std::vector<std::uint32_t>& samples, std::int64_t per_mille) {
  if (samples.empty()) return 0;
  const std::int64_t rank = (std::ssize(samples) * per_mille + 999) / 1000;
  const auto at = samples.begin() + std::max<std::int64_t>(rank - 1, 0);
  std::nth_element(samples.begin(), at, samples.end());
  return *at / 1000.0;
}

void print_checks(const TraceRun& run, const TraceCommand& command) {
  const Tally& tally = run.tally();
  std::vector<std::uint32_t> build_ns = tally.build_ns;
  fmt::print("\n");
  print_line("build time",
             fmt::format("p50 {:.2f} us, p99 {:.2f} us, max {:.1f} us ({})", percentile_us(build_ns, 500),
                         percentile_us(build_ns, 990), percentile_us(build_ns, 1000), command.chunk_policy));
  print_line("checked steps", grouped(tally.num_checked));
  print_line("findings", grouped(tally.num_findings));
  if (!command.emit_dir.empty())
    print_line("batches written", fmt::format("{}, to {}", grouped(run.num_emitted()), command.emit_dir));
}

}  // namespace

void print_summary(const TraceRun& run, const TraceCommand& command, const trace::RequestTrace& requests,
                   const trace::Scheduler& scheduler) {
  print_line("trace", command.file);
  print_requests(requests, scheduler);
  print_times(run.tally(), scheduler);
  print_scheduling(scheduler.counters());
  print_regions(run.tally());
  print_step_classes(run.tally());
  print_passes(run.tally());
  print_checks(run, command);
}

}  // namespace cli
