#pragma once

#include "attn/error.hpp"
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "cli/progress.hpp"
#include "properties/check.hpp"
#include "trace/scheduler.hpp"

#include <tl/expected.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Running a request trace: each step of its scheduler is built under both chunk policies, some steps are checked, some
/// are written to files, all are counted.
namespace cli {

/// What the command line of `attnfuzz trace` says.
struct TraceCommand {
  std::string file;
  trace::SchedulerOptions scheduler;
  std::optional<std::int32_t> max_num_seqs;  ///< none: what the token budget allows
  std::string chunk_policy = "equal_share";  ///< the one whose builds are timed
  std::int64_t max_steps = 0;                ///< 0: all
  std::int64_t check_every = 100;            ///< steps, 0: none is checked
  std::string emit_dir;                      ///< empty: no batches are written
  std::int64_t emit_every = 1000;            ///< steps, >= 1
  std::int64_t emit_max_tokens = 0;          ///< query tokens, and context tokens of extends; 0: any
  std::int64_t emit_limit = 100;             ///< files
};

/// Makes the directory and a file in it, so that a run does not end at its first batch. Throws InputError.
void require_writable(const std::string& dir);

/// The steps of one run that end up in files: written aside and renamed, so that nobody finds half of one.
class BatchFiles {
 public:
  /// `command` must outlive this.
  explicit BatchFiles(const TraceCommand& command);

  [[nodiscard]] std::int64_t num_emitted() const { return num_emitted_; }

  /// Of each `emit_every` steps the first that is small enough, up to `emit_limit` of them.
  [[nodiscard]] bool is_due(const batchtext::Step& step, std::int64_t index) const;

  /// Writes step `index` to `<trace>-<index>.batch` in `emit_dir`. Throws InputError.
  void emit(const batchtext::Case& parsed, std::int64_t index);

  /// `trace-finding-<index>.batch` in `emit_dir`, or in the current directory without one.
  [[nodiscard]] std::filesystem::path finding_path(std::int64_t index) const;
  /// Writes step `index`, which breaks the invariant `id`, to its `finding_path`. Throws InputError.
  void write_finding(const batchtext::Case& parsed, std::int64_t index, std::string_view id) const;

 private:
  [[nodiscard]] bool is_small(const batchtext::Step& step) const;

  const TraceCommand& command_;
  std::string trace_name_;
  std::int64_t next_step_ = 0;
  std::int64_t num_emitted_ = 0;
};

/// Passes over the contexts under one policy.
struct PassCount {
  std::int64_t num_passes = 0;
  std::int64_t most = 0;  ///< in one step
  std::int64_t num_steps_without = 0;

  void add(const attn::Metadata& metadata);
};

/// Rows and query tokens of one region.
struct RegionCount {
  std::int64_t num_rows = 0;
  std::int64_t num_tokens = 0;

  void add(const attn::Region& region);
};

/// The regions a step has, as bits of its class.
enum StepClass : std::size_t { has_decode = 1, has_extend = 2, has_prefill = 4 };
inline constexpr std::size_t num_step_classes = 8;  ///< every subset of the three regions

/// What is counted over a run.
struct Tally {
  std::array<RegionCount, 3> regions;                         ///< decode, extend, prefill
  std::array<std::int64_t, num_step_classes> step_classes{};  ///< steps, by the bits of StepClass
  std::array<PassCount, attn::num_chunk_policies> passes;     ///< by ChunkPolicy; equal_share and packed always
  std::int64_t num_context_tokens = 0;                        ///< gathered by extends
  std::int64_t num_gathering_steps_saved = 0;                 ///< steps in which `packed` has fewer passes
  std::int64_t num_refused = 0;                               ///< builds that a small workspace does not allow
  std::string first_refusal;                                  ///< its step and error
  std::vector<std::uint32_t> build_ns;                        ///< under the configured policy [steps]
  std::int64_t num_checked = 0;                               ///< steps
  std::int64_t num_findings = 0;
  double wall_s = 0;

  /// Counts all but passes of a step, whatever its policy.
  void add_step(const attn::Metadata& metadata);
};

/// One run of a trace, to its end or to `max_steps`. Findings are printed as they are found.
class TraceRun {
 public:
  /// Both must outlive this.
  TraceRun(const TraceCommand& command, trace::Scheduler& scheduler);

  /// To be called once. Throws InputError where a file cannot be written.
  void run();

  [[nodiscard]] const Tally& tally() const { return tally_; }
  /// Batches written, findings apart.
  [[nodiscard]] std::int64_t num_emitted() const { return files_.num_emitted(); }

 private:
  [[nodiscard]] std::int64_t step_index() const { return scheduler_.counters().num_steps - 1; }
  [[nodiscard]] bool is_cut_short() const;
  [[nodiscard]] double share_done() const;
  [[nodiscard]] Progress::State progress_state() const;
  void build(const batchtext::Step& step);
  void count(const tl::expected<attn::Metadata, attn::Error>& built, attn::ChunkPolicy policy,
             const batchtext::Step& step);
  void check_if_due(const batchtext::Step& step);
  void report(const properties::Finding& finding, const batchtext::Step& step);
  const batchtext::Case& case_of(const batchtext::Step& step);

  const TraceCommand& command_;
  trace::Scheduler& scheduler_;
  BatchFiles files_;
  Progress progress_{"trace", "steps"};
  attn::MetadataBuilder builder_;
  Tally tally_;
  batchtext::Case case_;
  std::set<std::string> reported_ids_;
};

}  // namespace cli
