#include "attn/batch.hpp"
#include "batchtext/batchtext.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/input.hpp"
#include "cli/trace_run.hpp"
#include "cli/trace_summary.hpp"
#include "trace/request_trace.hpp"
#include "trace/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>

namespace cli {
namespace {

/// Ten times a day of a large service; a longer file was meant for something else.
constexpr std::int64_t max_trace_bytes = std::int64_t{1} << 30;

std::string read_trace(const std::string& path) {
  std::string text = read_file(path, max_trace_bytes);
  if (std::ssize(text) > max_trace_bytes)
    throw InputError(fmt::format("{}: longer than {} bytes", path, max_trace_bytes));
  return text;
}

int run_trace(TraceCommand& command) {
  const auto requests = trace::parse_request_trace(read_trace(command.file));
  if (!requests) throw InputError(batchtext::message(requests.error(), command.file));
  trace::SchedulerOptions& options = command.scheduler;
  // As vLLM does: only a number of requests that was asked for can be too large for the token budget.
  options.max_num_seqs =
      command.max_num_seqs.value_or(std::clamp(options.max_num_batched_tokens, 1, options.max_num_seqs));
  options.chunk_policy = batchtext::parse_chunk_policy(command.chunk_policy).value();
  auto scheduler = trace::Scheduler::make(*requests, options);
  if (!scheduler) throw InputError(scheduler.error());
  if (!command.emit_dir.empty()) require_writable(command.emit_dir);

  TraceRun run(command, *scheduler);
  run.run();
  print_summary(run, command, *requests, *scheduler);
  return run.tally().num_findings > 0 ? finding : fine;
}

void add_scheduler_options(CLI::App& app, TraceCommand& command) {
  trace::SchedulerOptions& o = command.scheduler;
  const std::string group = "Scheduler (names and defaults of vLLM's server on a GPU of 70 GiB or more)";
  const auto add = [&](const char* name, std::int32_t& value, const char* text) {
    app.add_option(name, value, text)->check(whole_number(0))->group(group)->capture_default_str();
  };
  add("--max-num-batched-tokens", o.max_num_batched_tokens, "Query tokens of a step");
  app.add_option("--max-num-seqs", command.max_num_seqs,
                 "Requests of a step [1024, or the token budget if that is less]")
      ->check(whole_number(0))
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
    return app.add_option(name, value, text)->group("What a trace does not say")->capture_default_str();
  };
  const CLI::Validator not_negative = whole_number(0);
  add("--seed", o.seed, "Of all that is drawn: accepted drafts, prefix hits")->check(not_negative);
  add("--draft-acceptance-rate", o.draft_acceptance_rate, "Chance of a draft token, 0 to 1");
  add("--prefix-hit-rate", o.prefix_hit_rate, "Share of requests with a cached prefix, 0 to 1");
  add("--prefix-hit-fraction", o.prefix_hit_fraction, "Longest cached prefix, as a share of the prompt, 0 to 1");
  add("--step-base-us", o.step_base_us, "Time of a step in us, whatever it computes")->check(not_negative);
  add("--step-token-ns", o.step_token_ns, "Time of each query token in ns")->check(not_negative);
}

void add_attention_options(CLI::App& app, TraceCommand& command) {
  const std::string group = "Attention";
  app.add_option("--workspace", command.scheduler.workspace_tokens, "Context tokens that a pass gathers")
      ->check(whole_number(0))
      ->group(group)
      ->capture_default_str();
  app.add_option("--window", command.scheduler.window_left, "Sliding window: keys to the left of a token")
      ->check(whole_number(0))
      ->group(group);
  app.add_option("--policy", command.chunk_policy, "Chunk policy whose builds are timed")
      ->check(chunk_policy_name())
      ->group(group)
      ->capture_default_str();
}

void add_run_options(CLI::App& app, TraceCommand& command) {
  const auto add = [&](const char* group, const char* name, std::int64_t& value, const CLI::Validator& range,
                       const char* text) {
    return app.add_option(name, value, text)->check(range)->group(group)->capture_default_str();
  };
  const CLI::Validator positive = whole_number(1);
  const CLI::Validator not_negative = whole_number(0);
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
