// How fast a warm builder is, against what the memory allows: each build is timed in turn with a std::fill over as many
// bytes as it writes, so that the ratio means the same on a slow and on a fast machine.
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

/// Short builds are timed many at a time, so that reading the clock does not count.
constexpr double least_timed_us = 20;

batchtext::Step step_of(std::string_view text) {
  auto parsed = batchtext::parse("attnfuzz 1\n" + std::string{text});
  if (!parsed) {
    std::fprintf(stderr, "%s\n", batchtext::message(parsed.error(), text).c_str());
    std::exit(2);
  }
  return std::move(parsed->steps.front());
}

/// Bytes of all arrays of the metadata.
std::size_t output_bytes(const attn::Metadata& metadata) {
  const auto bytes = [](auto... spans) { return (spans.size_bytes() + ...); };
  const attn::ChunkedContext& context = metadata.context;
  std::size_t total =
      bytes(metadata.decode.query_start_loc, metadata.extend.query_start_loc, metadata.prefill.query_start_loc,
            context.context_lens, context.chunk_starts.data, context.seq_lens.data, context.cu_seq_lens.data,
            context.seq_tot, context.max_seq_lens, context.token_start, context.token_to_batch_data);
  if (metadata.window)
    total += bytes(metadata.window->seq_starts, metadata.window->seq_lens, metadata.window->cu_seq_lens,
                   metadata.window->token_to_batch);
  return total;
}

template <class Action>
double time_us(int repeats, Action action) {
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) action();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / repeats;
}

double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void build(benchmark::State& state, const std::string& text) {
  const batchtext::Arrays arrays{step_of(text)};
  attn::MetadataBuilder builder;
  const auto warm = builder.build(arrays.batch());
  if (!warm) {
    state.SkipWithError(attn::message(warm.error()).c_str());
    return;
  }
  const std::size_t bytes = output_bytes(*warm);
  std::vector<std::int32_t> floor(bytes / sizeof(std::int32_t), 1);
  const auto build_once = [&] { benchmark::DoNotOptimize(builder.build(arrays.batch())); };
  const auto fill_once = [&] {
    std::fill(floor.begin(), floor.end(), 7);
    benchmark::DoNotOptimize(floor.data());
    benchmark::ClobberMemory();
  };
  const int repeats = 1 + static_cast<int>(least_timed_us / std::max(time_us(3, build_once), 0.01));
  std::vector<double> builds, fills, ratios;
  for (auto _ : state) {
    builds.push_back(time_us(repeats, build_once));
    fills.push_back(time_us(repeats, fill_once));
    ratios.push_back(builds.back() / fills.back());
    state.SetIterationTime(builds.back() * 1e-6);
  }
  state.counters["build_us"] = median(builds);
  state.counters["fill_us"] = median(fills);
  state.counters["ratio"] = median(ratios);
  state.counters["out_KiB"] = static_cast<double>(bytes) / 1024;
  state.counters["chunks"] = warm->context.num_chunks;
}

void split(benchmark::State& state, const std::string& text) {
  const batchtext::Arrays arrays{step_of(text)};
  for (auto _ : state) benchmark::DoNotOptimize(attn::split_decodes_extends_prefills(arrays.batch()));
}

void register_builds() {
  const auto add = [](const std::string& name, const std::string& text) {
    benchmark::RegisterBenchmark(("build/" + name).c_str(), [text](benchmark::State& state) { build(state, text); })
        ->UseManualTime()
        ->MinTime(0.05)
        ->Unit(benchmark::kMicrosecond);
  };
  add("128_extends", "batch 128q16s2064");
  add("128_extends_packed", "chunk_policy packed\nbatch 128q16s2064");
  add("128_extends_packed_aligned", "chunk_policy packed\nchunk_alignment 16\nbatch 128q16s2064");
  add("128_extends_mla", "chunk_policy mla\nchunk_alignment 16\nbatch 128q16s2064");
  add("128_extends_window", "window_left 1023\nbatch 128q16s2064");
  add("mixed", "batch 200q1s2k_8q512s4608_4q512");
  add("mixed_packed", "chunk_policy packed\nbatch 200q1s2k_8q512s4608_4q512");
  add("256_decodes", "batch 256q1s2k");
  add("1024_decodes_with_bounds", "batch 1024q1s2k\nseq_lens_upper_bound batch");
  // One to sixteen million context tokens: linear means the same time a token all the way.
  for (std::int64_t tokens = 1024; tokens <= 16 * 1024 * 1024; tokens *= 4) {
    const std::string requests = "batch 16q16s" + std::to_string(16 + tokens / 16);
    add("context/" + std::to_string(tokens), requests);
    add("context_packed/" + std::to_string(tokens), "chunk_policy packed\n" + requests);
  }
  benchmark::RegisterBenchmark("split/256_decodes", [](benchmark::State& state) { split(state, "batch 256q1s2k"); });
  benchmark::RegisterBenchmark("split/mixed",
                               [](benchmark::State& state) { split(state, "batch 200q1s2k_8q512s4608_4q512"); });
}

}  // namespace

int main(int argc, char** argv) {
  register_builds();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
