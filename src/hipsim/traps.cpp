#include "traps.hpp"

#include <ucontext.h>
#include <csignal>

namespace hipsim::traps {

constinit thread_local bool is_gpu_thread = false;

#if defined(__x86_64__)

namespace {

bool is_in_place = false;
OnDivision on_division_now = nullptr;
const void* divided_at = nullptr;
struct sigaction action_before {};

/// What the thread goes on with in place of the division.
void go_on_after_division() { on_division_now(divided_at); }

/// As if hipsim was not there.
void pass_on(int signal, siginfo_t* info, void* context) {
  if ((action_before.sa_flags & SA_SIGINFO) != 0) return action_before.sa_sigaction(signal, info, context);
  if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN)
    return action_before.sa_handler(signal);
  // The division is made again, and ends the process.
  is_in_place = false;
  sigaction(SIGFPE, &action_before, nullptr);
}

/// Returns before anything else is done: then neither the kernel nor a sanitizer takes the thread for one that still
/// handles a signal.
void handle(int signal, siginfo_t* info, void* context) {
  if (!is_gpu_thread) return pass_on(signal, info, context);
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  divided_at = reinterpret_cast<const void*>(registers[REG_RIP]);
  // Below what a function may keep under its stack pointer, and as after a call.
  constexpr greg_t red_zone = 128;
  registers[REG_RSP] = ((registers[REG_RSP] - red_zone) & ~greg_t{15}) - 8;
  registers[REG_RIP] = reinterpret_cast<greg_t>(go_on_after_division);
}

}  // namespace

void catch_divisions(OnDivision on_division) {
  if (is_in_place) return;
  is_in_place = true;
  on_division_now = on_division;
  struct sigaction now {};
  sigaction(SIGFPE, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle) return;
  action_before = now;
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGFPE, &action, nullptr);
}
void look_again() { is_in_place = false; }

#else

// Elsewhere a division by zero is no signal.
void catch_divisions(OnDivision) {}
void look_again() {}

#endif

}  // namespace hipsim::traps
