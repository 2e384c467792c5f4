#include "attn/error.hpp"
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "cli/commands.hpp"
#include "properties/check.hpp"
#include "trace/request_trace.hpp"
#include "trace/scheduler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// What the command line says.
struct TraceCommand {
  std::string file;
  trace::SchedulerOptions scheduler;
  std::optional<std::int32_t> max_num_seqs;
  std::string chunk_policy = "equal_share";
  std::int64_t max_steps = 0;  // 0: all
  std::int64_t check_every = 100;
  std::string emit_dir;
  std::int64_t emit_every = 1000;
  std::int64_t emit_max_tokens = 0;  // 0: any
  std::int64_t emit_limit = 100;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// 1234567 as `1,234,567`.
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::int64_t first_digit = number < 0 ? 1 : 0;
  for (std::int64_t at = std::ssize(text) - 3; at > first_digit; at -= 3)
    text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// ---- Files

std::string read_file(const std::string& path) {
  std::error_code error;
  // Opening a directory succeeds; reading it throws.
  if (fs::is_directory(path, error)) throw InputError(path + ": is a directory");
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) throw InputError(path + ": cannot be read");
  return text;
}

/// Written aside and renamed: nobody finds half a file under the name.
void write_file(const fs::path& path, std::string_view text) {
  fs::path aside = path;
  aside += ".part";
  std::ofstream out(aside, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  std::error_code error;
  if (out) fs::rename(aside, path, error);
  if (out && !error) return;
  std::error_code ignored;
  fs::remove(aside, ignored);
  throw InputError(path.string() + ": cannot be written");
}

/// Makes the directory and a file in it, so that a run does not end at its first batch.
void require_writable(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw InputError(dir + ": cannot be made: " + error.message());
  const fs::path probe = fs::path(dir) / ".attnfuzz-probe";
  write_file(probe, "");
  fs::remove(probe, error);
}

/// The steps of one run that end up in files.
class BatchFiles {
 public:
  explicit BatchFiles(const TraceCommand& command)
      : command_(command), trace_name_(fs::path(command.file).filename().string()) {}

  [[nodiscard]] std::int64_t num_emitted() const { return num_emitted_; }

  /// Of each `emit_every` steps the first that is small enough.
  [[nodiscard]] bool is_due(const batchtext::Step& step, std::int64_t index) const {
    if (command_.emit_dir.empty() || index < next_step_ || num_emitted_ >= command_.emit_limit) return false;
    return command_.emit_max_tokens == 0 || is_small(step);
  }

  void emit(const batchtext::Case& parsed, std::int64_t step) {
    const fs::path stem = fs::path(command_.file).stem();
    const fs::path path = fs::path(command_.emit_dir) / fmt::format("{}-{}.batch", stem.string(), step);
    write_file(path, text_of(parsed, fmt::format("{}, step {}", trace_name_, step)));
    ++num_emitted_;
    next_step_ = step - step % command_.emit_every + command_.emit_every;
  }

  [[nodiscard]] fs::path finding_path(std::int64_t step) const {
    return fs::path(command_.emit_dir) / fmt::format("trace-finding-{}.batch", step);
  }
  void write_finding(const batchtext::Case& parsed, std::int64_t step, std::string_view id) const {
    write_file(finding_path(step), text_of(parsed, fmt::format("{}, step {}: breaks {}", trace_name_, step, id)));
  }

 private:
  static std::string text_of(const batchtext::Case& parsed, std::string_view comment) {
    return fmt::format("# {}\n{}", comment, batchtext::print(parsed));
  }

  [[nodiscard]] bool is_small(const batchtext::Step& step) const {
    std::int64_t query_tokens = 0;
    std::int64_t context_tokens = 0;
    for (const batchtext::Request& request : step.requests) {
      query_tokens += request.query_len;
      const bool is_extend = request.query_len > step.config.decode_threshold;
      if (is_extend) context_tokens += attn::context_len(request.query_len, request.seq_len);
    }
    return std::max(query_tokens, context_tokens) <= command_.emit_max_tokens;
  }

  const TraceCommand& command_;
  std::string trace_name_;
  std::int64_t next_step_ = 0;
  std::int64_t num_emitted_ = 0;
};

// ---- Counting

/// Passes over the contexts under one policy.
struct PassCount {
  std::int64_t num_passes = 0;
  std::int64_t most = 0;
  std::int64_t num_steps_without = 0;

  void add(const attn::Metadata& metadata) {
    const std::int64_t passes = metadata.context.num_chunks;
    num_passes += passes;
    most = std::max(most, passes);
    if (passes == 0) ++num_steps_without;
  }
};

struct RegionCount {
  std::int64_t num_rows = 0;
  std::int64_t num_tokens = 0;

  void add(const attn::Region& region) {
    num_rows += region.num_reqs;
    num_tokens += region.num_tokens;
  }
};

enum StepClass : std::size_t { has_decode = 1, has_extend = 2, has_prefill = 4 };
constexpr std::size_t num_step_classes = 8;  // every subset of the three regions

/// What is counted over a run.
struct Tally {
  std::array<RegionCount, 3> regions;  // decode, extend, prefill
  std::array<std::int64_t, num_step_classes> step_classes{};
  std::array<PassCount, 2> passes;  // by ChunkPolicy
  std::int64_t num_context_tokens = 0;
  std::int64_t num_gathering_steps_saved = 0;  // steps in which `packed` has fewer passes
  std::int64_t num_refused = 0;                // builds that a small workspace does not allow
  std::string first_refusal;
  std::vector<std::uint32_t> build_ns;
  std::int64_t num_checked = 0;
  std::int64_t num_findings = 0;
  double wall_s = 0;

  void add_step(const attn::Metadata& metadata) {
    regions[0].add(metadata.decode);
    regions[1].add(metadata.extend);
    regions[2].add(metadata.prefill);
    std::size_t step_class = 0;
    if (metadata.decode.num_reqs > 0) step_class |= has_decode;
    if (metadata.extend.num_reqs > 0) step_class |= has_extend;
    if (metadata.prefill.num_reqs > 0) step_class |= has_prefill;
    ++step_classes[step_class];
    for (const std::int32_t context : metadata.context.context_lens) num_context_tokens += context;
  }
};

/// How far a run is, on stderr, once it takes long enough to be missed.
class Progress {
 public:
  explicit Progress(Clock::time_point start) : start_(start), is_terminal_(isatty(STDERR_FILENO) != 0) {}

  void update(double share, std::int64_t num_steps) {
    // A step takes microseconds; the clock is not asked at each.
    if (num_steps % 32 != 0) return;
    const double elapsed_s = seconds_since(start_);
    if (elapsed_s < next_s_) return;
    next_s_ = elapsed_s + (is_terminal_ ? 0.2 : 5.0);
    is_shown_ = true;
    show(share, num_steps, elapsed_s);
  }
  void finish() const {
    if (is_shown_ && is_terminal_) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  void show(double share, std::int64_t num_steps, double elapsed_s) const {
    const double left_s = share > 0 ? elapsed_s * (1 - share) / share : 0;
    const std::string numbers =
        fmt::format("{:3.0f} %  {} steps  {} steps/s  {:.0f} s left", 100 * share, grouped(num_steps),
                    grouped(std::llround(static_cast<double>(num_steps) / elapsed_s)), left_s);
    if (!is_terminal_) {
      fmt::print(stderr, "trace: {}\n", numbers);
      return;
    }
    constexpr std::size_t width = 30;
    const auto done = std::min(width, static_cast<std::size_t>(share * static_cast<double>(width)));
    fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}\x1b[K", "", done, "", width - done, numbers);
    std::fflush(stderr);
  }

  Clock::time_point start_;
  bool is_terminal_;
  bool is_shown_ = false;
  double next_s_ = 2;
};

// ---- The run

/// An error that the options ask for, not a fault: a workspace below the number of extends, a build above the limits.
bool is_refusal(const attn::Error& error) {
  return error.kind == attn::Error::workspace_too_small || error.kind == attn::Error::capacity_exceeded ||
         error.kind == attn::Error::out_of_memory;
}

class TraceRun {
 public:
  TraceRun(const TraceCommand& command, trace::Scheduler& scheduler)
      : command_(command), scheduler_(scheduler), files_(command) {}

  void run() {
    const auto start = Clock::now();
    Progress progress(start);
    while (!is_cut_short()) {
      const batchtext::Step* step = scheduler_.next();
      if (step == nullptr) break;
      build(*step);
      check_if_due(*step);
      if (files_.is_due(*step, step_index())) files_.emit(case_of(*step), step_index());
      progress.update(share_done(), scheduler_.counters().num_steps);
    }
    progress.finish();
    tally_.wall_s = seconds_since(start);
  }

  [[nodiscard]] Tally& tally() { return tally_; }
  [[nodiscard]] std::int64_t num_emitted() const { return files_.num_emitted(); }

 private:
  [[nodiscard]] std::int64_t step_index() const { return scheduler_.counters().num_steps - 1; }
  [[nodiscard]] bool is_cut_short() const {
    return command_.max_steps > 0 && scheduler_.counters().num_steps >= command_.max_steps;
  }
  [[nodiscard]] double share_done() const {
    const auto share = [](std::int64_t done, std::int64_t all) {
      return all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 0.0;
    };
    return std::max(share(scheduler_.num_finished(), scheduler_.num_requests()),
                    share(scheduler_.counters().num_steps, command_.max_steps));
  }

  /// One builder for both policies, as it was left by the step before. The configured policy goes first: only its
  /// build is timed, and nothing has warmed the caches for it.
  void build(const batchtext::Step& step) {
    const batchtext::Arrays arrays(step);
    const auto start = Clock::now();
    const auto configured = builder_.build(arrays.batch());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    tally_.build_ns.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(ns, UINT32_MAX)));
    const auto policy = step.config.chunk_policy;
    const std::int64_t num_passes = configured ? configured->context.num_chunks : 0;
    if (configured) tally_.add_step(*configured);
    count(configured, policy, step);

    using attn::ChunkPolicy;
    const auto other = policy == ChunkPolicy::packed ? ChunkPolicy::equal_share : ChunkPolicy::packed;
    attn::Batch batch = arrays.batch();
    batch.config.chunk_policy = other;
    const auto second = builder_.build(batch);
    count(second, other, step);
    if (!configured || !second) return;
    const std::int64_t packed = policy == ChunkPolicy::packed ? num_passes : second->context.num_chunks;
    const std::int64_t equal_share = policy == ChunkPolicy::packed ? second->context.num_chunks : num_passes;
    if (packed < equal_share) ++tally_.num_gathering_steps_saved;
  }

  void count(const tl::expected<attn::Metadata, attn::Error>& built, attn::ChunkPolicy policy,
             const batchtext::Step& step) {
    if (built) {
      tally_.passes[static_cast<std::size_t>(policy)].add(*built);
    } else if (is_refusal(built.error())) {
      if (tally_.num_refused++ == 0)
        tally_.first_refusal = fmt::format("step {}: {}", step_index(), attn::message(built.error()));
    } else {
      report({"build", "every step of a scheduler builds", "step 0", attn::message(built.error())}, step);
    }
  }

  void check_if_due(const batchtext::Step& step) {
    if (command_.check_every == 0 || step_index() % command_.check_every != 0) return;
    ++tally_.num_checked;
    if (const auto finding = properties::check_case(case_of(step))) report(*finding, step);
  }

  /// Shows the first finding of each invariant: one that is broken once is broken at thousands of steps.
  void report(const properties::Finding& finding, const batchtext::Step& step) {
    ++tally_.num_findings;
    if (!reported_ids_.insert(finding.id).second) return;
    const batchtext::Case& parsed = case_of(step);
    const std::string file = files_.finding_path(step_index()).string();
    // Before it is written: a full disk must not swallow it.
    fmt::print("{}\n", properties::report(finding, parsed, "attnfuzz check " + file));
    files_.write_finding(parsed, step_index(), finding.id);
    fmt::print("step {} of {}, written to {}\n\n", step_index(), command_.file, file);
  }

  const batchtext::Case& case_of(const batchtext::Step& step) {
    case_.steps.resize(1);
    case_.steps.front() = step;
    return case_;
  }

  const TraceCommand& command_;
  trace::Scheduler& scheduler_;
  BatchFiles files_;
  attn::MetadataBuilder builder_;
  Tally tally_;
  batchtext::Case case_;
  std::set<std::string> reported_ids_;
};

// ---- The table at the end

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
  const auto& [equal_share, packed] = tally.passes;
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

void print_checks(TraceRun& run, const TraceCommand& command) {
  Tally& tally = run.tally();
  fmt::print("\n");
  print_line("build time", fmt::format("p50 {:.2f} us, p99 {:.2f} us, max {:.1f} us ({})",
                                       percentile_us(tally.build_ns, 500), percentile_us(tally.build_ns, 990),
                                       percentile_us(tally.build_ns, 1000), command.chunk_policy));
  print_line("checked steps", grouped(tally.num_checked));
  print_line("findings", grouped(tally.num_findings));
  if (!command.emit_dir.empty())
    print_line("batches written", fmt::format("{}, to {}", grouped(run.num_emitted()), command.emit_dir));
}

void print_summary(TraceRun& run, const TraceCommand& command, const trace::RequestTrace& requests,
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

int run_trace(TraceCommand& command) {
  const auto requests = trace::parse_request_trace(read_file(command.file));
  if (!requests) throw InputError(batchtext::message(requests.error(), command.file));
  trace::SchedulerOptions& options = command.scheduler;
  // As vLLM does: only a number of requests that was asked for can be too large for the token budget.
  options.max_num_seqs =
      command.max_num_seqs.value_or(std::clamp(options.max_num_batched_tokens, 1, options.max_num_seqs));
  options.chunk_policy = command.chunk_policy == "packed" ? attn::ChunkPolicy::packed : attn::ChunkPolicy::equal_share;
  auto scheduler = trace::Scheduler::make(*requests, options);
  if (!scheduler) throw InputError(scheduler.error());
  if (!command.emit_dir.empty()) require_writable(command.emit_dir);

  TraceRun run(command, *scheduler);
  run.run();
  print_summary(run, command, *requests, *scheduler);
  return run.tally().num_findings > 0 ? finding : fine;
}

// ---- The command line

void add_scheduler_options(CLI::App& app, TraceCommand& command) {
  trace::SchedulerOptions& o = command.scheduler;
  const std::string group = "Scheduler (names and defaults of vLLM's server on a GPU of 70 GiB or more)";
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  add("--max-num-batched-tokens", o.max_num_batched_tokens, "Query tokens of a step");
  app.add_option("--max-num-seqs", command.max_num_seqs,
                 "Requests of a step [1024, or the token budget if that is less]")
      ->group(group);
  add("--max-model-len", o.max_model_len, "Longest request, prompt and output; the KV cache limits it too");
  app.add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill", o.enable_chunked_prefill,
               "Cut prompts where the token budget ends (default)")
      ->group(group);
  add("--long-prefill-token-threshold", o.long_prefill_token_threshold,
      "Longest piece of a prompt in a step, 0: no limit");
  add("--block-size", o.block_size, "Tokens of a KV block");
  add("--num-gpu-blocks", o.num_gpu_blocks, "KV blocks; few of them mean preemptions");
  add("--num-speculative-tokens", o.num_speculative_tokens,
      "Draft tokens of a decode; the decode threshold is one more");
  app.add_flag("--async-scheduling", o.async_scheduling, "Give upper bounds of the lengths besides exact ones")
      ->group(group);
}

void add_model_options(CLI::App& app, TraceCommand& command) {
  trace::SchedulerOptions& o = command.scheduler;
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group("What a trace does not say")->capture_default_str();
  };
  add("--seed", o.seed, "Of all that is drawn: accepted drafts, prefix hits");
  add("--draft-acceptance-rate", o.draft_acceptance_rate, "Chance of a draft token, 0 to 1");
  add("--prefix-hit-rate", o.prefix_hit_rate, "Share of requests with a cached prefix, 0 to 1");
  add("--prefix-hit-fraction", o.prefix_hit_fraction, "Longest cached prefix, as a share of the prompt, 0 to 1");
  add("--step-base-us", o.step_base_us, "Time of a step in us, whatever it computes");
  add("--step-token-ns", o.step_token_ns, "Time of each query token in ns");
}

void add_attention_options(CLI::App& app, TraceCommand& command) {
  const std::string group = "Attention";
  app.add_option("--workspace", command.scheduler.workspace_tokens, "Context tokens that a pass gathers")
      ->group(group)
      ->capture_default_str();
  app.add_option("--window", command.scheduler.window_left, "Sliding window: keys to the left of a token")
      ->group(group);
  app.add_option("--policy", command.chunk_policy, "Chunk policy whose builds are timed")
      ->check(CLI::IsMember({"equal_share", "packed"}))
      ->group(group)
      ->capture_default_str();
}

/// CLI11's own says its limits as doubles.
CLI::Validator at_least(std::int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        std::int64_t value = 0;
        const bool is_fine = CLI::detail::lexical_cast(text, value) && value >= least;
        return is_fine ? std::string() : fmt::format("{} is not a whole number of at least {}", text, least);
      },
      "");
}

void add_run_options(CLI::App& app, TraceCommand& command) {
  const auto add = [&](const char* group, const char* name, std::int64_t& value, const CLI::Validator& range,
                       const char* text) {
    return app.add_option(name, value, text)->check(range)->group(group)->capture_default_str();
  };
  const CLI::Validator positive = at_least(1);
  const CLI::Validator not_negative = at_least(0);
  add("Run", "--max-steps", command.max_steps, not_negative, "Stop after so many steps, 0: at the end of the trace");
  add("Run", "--check-every", command.check_every, not_negative,
      "Hold the invariants against every Nth step, 0: never");
  CLI::Option* const emit = app.add_option("--emit", command.emit_dir, "Write steps as .batch files to this directory");
  emit->type_name("DIR")->group("Batches");
  add("Batches", "--every", command.emit_every, positive, "The first step of each N that is small enough")->needs(emit);
  add("Batches", "--emit-max-tokens", command.emit_max_tokens, not_negative,
      "Only steps of at most so many query tokens, and context tokens of extends, 0: any")
      ->needs(emit);
  add("Batches", "--emit-limit", command.emit_limit, not_negative, "At most so many files")->needs(emit);
}

constexpr const char* examples = R"(Examples:
  attnfuzz trace azure_llm_2023_conv.csv
      the whole trace; every 100th step is checked
  attnfuzz trace azure_llm_2023_conv.csv --num-gpu-blocks 4096 --check-every 1
      few KV blocks, so that requests are preempted; every step is checked
  attnfuzz trace mooncake_conversation.csv --num-speculative-tokens 3 --async-scheduling --prefix-hit-rate 0.4
      draft tokens, upper bounds of lengths, cached prefixes
  attnfuzz trace azure_llm_2023_code.csv --emit seeds --every 500 --emit-max-tokens 4096 --emit-limit 20
      small steps for a corpus

A trace is a CSV file with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference traces) or
timestamp_ms,input_length,output_length (Mooncake), in any order, others between them.
Exit code: 0 fine, 1 an invariant does not hold (the step is written to trace-finding-<step>.batch), 2 bad input.)";

}  // namespace

void add_trace(CLI::App& app, int& exit_code) {
  CLI::App* trace = app.add_subcommand("trace", "Run a request trace through a scheduler and check its batches");
  const auto command = std::make_shared<TraceCommand>();
  trace->add_option("file", command->file, "Request trace, CSV")->required()->type_name("FILE.csv");
  add_scheduler_options(*trace, *command);
  add_model_options(*trace, *command);
  add_attention_options(*trace, *command);
  add_run_options(*trace, *command);
  trace->footer(examples);
  trace->callback([command, &exit_code] { exit_code = run_trace(*command); });
}

}  // namespace cli
