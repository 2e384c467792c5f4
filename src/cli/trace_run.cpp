#include "cli/trace_run.hpp"

#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <system_error>

namespace cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string text_of(const batchtext::Case& parsed, std::string_view comment) {
  return fmt::format("# {}\n{}", comment, batchtext::print(parsed));
}

/// An error that the options ask for, not a fault: a workspace below the number of extends, a build above the limits.
bool is_refusal(const attn::Error& error) {
  return error.kind == attn::Error::workspace_too_small || error.kind == attn::Error::capacity_exceeded ||
         error.kind == attn::Error::out_of_memory;
}

}  // namespace

void require_writable(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw InputError(dir + ": cannot be made: " + error.message());
  const fs::path probe = fs::path(dir) / ".attnfuzz-probe";
  replace_file(probe.string(), "");
  fs::remove(probe, error);
}

BatchFiles::BatchFiles(const TraceCommand& command)
    : command_(command), trace_name_(fs::path(command.file).filename().string()) {}

bool BatchFiles::is_due(const batchtext::Step& step, std::int64_t index) const {
  if (command_.emit_dir.empty() || index < next_step_ || num_emitted_ >= command_.emit_limit) return false;
  return command_.emit_max_tokens == 0 || is_small(step);
}

void BatchFiles::emit(const batchtext::Case& parsed, std::int64_t index) {
  const fs::path stem = fs::path(command_.file).stem();
  const fs::path path = fs::path(command_.emit_dir) / fmt::format("{}-{}.batch", stem.string(), index);
  replace_file(path.string(), text_of(parsed, fmt::format("{}, step {}", trace_name_, index)));
  ++num_emitted_;
  next_step_ = index - index % command_.emit_every + command_.emit_every;
}

fs::path BatchFiles::finding_path(std::int64_t index) const {
  return fs::path(command_.emit_dir) / fmt::format("trace-finding-{}.batch", index);
}

void BatchFiles::write_finding(const batchtext::Case& parsed, std::int64_t index, std::string_view id) const {
  replace_file(finding_path(index).string(),
               text_of(parsed, fmt::format("{}, step {}: breaks {}", trace_name_, index, id)));
}

bool BatchFiles::is_small(const batchtext::Step& step) const {
  std::int64_t query_tokens = 0;
  std::int64_t context_tokens = 0;
  for (const batchtext::Request& request : step.requests) {
    query_tokens += request.query_len;
    const bool is_extend = request.query_len > step.config.decode_threshold;
    if (is_extend) context_tokens += attn::context_len(request.query_len, request.seq_len);
  }
  return std::max(query_tokens, context_tokens) <= command_.emit_max_tokens;
}

void PassCount::add(const attn::Metadata& metadata) {
  const std::int64_t passes = metadata.context.num_chunks;
  num_passes += passes;
  most = std::max(most, passes);
  if (passes == 0) ++num_steps_without;
}

void RegionCount::add(const attn::Region& region) {
  num_rows += region.num_reqs;
  num_tokens += region.num_tokens;
}

void Tally::add_step(const attn::Metadata& metadata) {
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

TraceRun::TraceRun(const TraceCommand& command, trace::Scheduler& scheduler)
    : command_(command), scheduler_(scheduler), files_(command) {}

void TraceRun::run() {
  const auto start = Clock::now();
  while (!is_cut_short()) {
    const batchtext::Step* step = scheduler_.next();
    if (step == nullptr) break;
    build(*step);
    check_if_due(*step);
    if (files_.is_due(*step, step_index())) files_.emit(case_of(*step), step_index());
    progress_.update([this] { return progress_state(); });
  }
  progress_.clear();
  tally_.wall_s = seconds_since(start);
}

bool TraceRun::is_cut_short() const {
  return command_.max_steps > 0 && scheduler_.counters().num_steps >= command_.max_steps;
}

double TraceRun::share_done() const {
  const auto share = [](std::int64_t done, std::int64_t all) {
    return all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 0.0;
  };
  return std::max(share(scheduler_.num_finished(), scheduler_.num_requests()),
                  share(scheduler_.counters().num_steps, command_.max_steps));
}

Progress::State TraceRun::progress_state() const {
  const std::int64_t num_steps = scheduler_.counters().num_steps;
  return {num_steps, share_done(), grouped(num_steps) + " steps"};
}

/// One builder for all policies, as it was left by the step before. The configured policy goes first: only its build
/// is timed, and nothing has warmed the caches for it.
void TraceRun::build(const batchtext::Step& step) {
  const batchtext::Arrays arrays(step);
  const auto start = Clock::now();
  const auto configured = builder_.build(arrays.batch());
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  tally_.build_ns.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(ns, UINT32_MAX)));
  const auto policy = step.config.chunk_policy;
  if (configured) tally_.add_step(*configured);
  count(configured, policy, step);

  const auto num_passes_by = [&](attn::ChunkPolicy compared) -> std::optional<std::int64_t> {
    if (compared == policy) return configured ? std::optional{configured->context.num_chunks} : std::nullopt;
    attn::Batch batch = arrays.batch();
    batch.config.chunk_policy = compared;
    const auto built = builder_.build(batch);
    count(built, compared, step);
    return built ? std::optional{built->context.num_chunks} : std::nullopt;
  };
  // The other policy first: its build ends the life of the configured one's arrays, of which only a count is used.
  const auto equal_share = num_passes_by(attn::ChunkPolicy::equal_share);
  const auto packed = num_passes_by(attn::ChunkPolicy::packed);
  if (equal_share && packed && *packed < *equal_share) ++tally_.num_gathering_steps_saved;
}

void TraceRun::count(const tl::expected<attn::Metadata, attn::Error>& built, attn::ChunkPolicy policy,
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

void TraceRun::check_if_due(const batchtext::Step& step) {
  if (command_.check_every == 0 || step_index() % command_.check_every != 0) return;
  ++tally_.num_checked;
  if (const auto finding = properties::check_case(case_of(step))) report(*finding, step);
}

/// Shows the first finding of each invariant: one that is broken once is broken at thousands of steps.
void TraceRun::report(const properties::Finding& finding, const batchtext::Step& step) {
  ++tally_.num_findings;
  if (!reported_ids_.insert(finding.id).second) return;
  const batchtext::Case& parsed = case_of(step);
  const std::string file = files_.finding_path(step_index()).string();
  progress_.clear();
  // Before it is written: a full disk must not swallow it.
  fmt::print("{}\n", properties::report(finding, parsed, "attnfuzz check " + file));
  files_.write_finding(parsed, step_index(), finding.id);
  fmt::print("step {} of {}, written to {}\n\n", step_index(), command_.file, file);
}

const batchtext::Case& TraceRun::case_of(const batchtext::Step& step) {
  case_.steps.resize(1);
  case_.steps.front() = step;
  return case_;
}

}  // namespace cli
