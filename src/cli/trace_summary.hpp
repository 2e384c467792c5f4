#pragma once

#include "cli/trace_run.hpp"
#include "trace/request_trace.hpp"
#include "trace/scheduler.hpp"

namespace cli {

/// Prints what a run came to, on stdout: requests and scheduling, then tables of regions, kinds of steps and context
/// passes, then build times, checks and files. `scheduler` is the one the run has used up.
void print_summary(const TraceRun& run, const TraceCommand& command, const trace::RequestTrace& requests,
                   const trace::Scheduler& scheduler);

}  // namespace cli
