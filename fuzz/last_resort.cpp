// Nothing in here allocates: it runs where nothing can be allocated any more.
#include "fuzz/last_resort.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <iterator>

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

/// libFuzzer calls this before all else, where it is defined.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace fuzz {
namespace {

/// A report with symbols takes some seconds on a busy machine.
constexpr itimerval patience{{0, 0}, {20, 0}};
constexpr int exit_code = 77;  // libFuzzer's for an error

constexpr int signals[]{SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGALRM};
std::array<struct sigaction, std::size(signals)> handlers;  // of each, whoever's it was before

std::string_view running;
std::string_view artifact_prefix;  // where artifacts go, once there is an engine that writes them
volatile std::sig_atomic_t in_handler_of = 0;

/// A short text on the stack.
struct Line {
  std::array<char, 4352> text;  // a path, and what stands around it
  std::size_t size = 0;

  void add(std::string_view more) {
    const std::size_t count = std::min(more.size(), text.size() - 1 - size);
    std::copy_n(more.data(), count, text.data() + size);
    text[size += count] = '\0';
  }
};

void write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// The name of an artifact, as libFuzzer's but for the hash: FNV-1a in place of SHA-1.
Line name_artifact() {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : running) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  Line path;
  path.add(artifact_prefix);
  path.add(in_handler_of == SIGALRM ? "timeout-" : "crash-");
  for (int digit = 15; digit >= 0; --digit)
    path.add(std::string_view{"0123456789abcdef"}.substr(hash >> (4 * digit) & 15, 1));
  return path;
}

void write_artifact() {
  const Line path = name_artifact();
  const int file = open(path.text.data(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0) return;
  write_all(file, running);
  close(file);
  write_all(STDERR_FILENO, "Test unit written to ");
  write_all(STDERR_FILENO, {path.text.data(), path.size});
  write_all(STDERR_FILENO, "\n");
}

[[noreturn]] void end_run() {
  write_all(STDERR_FILENO,
            "\nERROR: the handler of a fatal signal did not come to its end: the heap may be corrupted\n");
  if (!artifact_prefix.empty()) write_artifact();
  write_all(STDERR_FILENO, "SUMMARY: deadly signal, without a report\n");
  _exit(exit_code);
}

bool is_a_function(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (in_handler_of != 0) end_run();
  const auto at = static_cast<std::size_t>(std::find(std::begin(signals), std::end(signals), signal) - signals);
  const struct sigaction& handler = handlers[at];
  if (!is_a_function(handler)) {  // an alarm that nobody waits for
    std::signal(signal, handler.sa_handler);
    std::raise(signal);
    return;
  }
  in_handler_of = signal;
  itimerval timer{};  // the engine's own, for inputs that take too long
  setitimer(ITIMER_REAL, &patience, &timer);
  if ((handler.sa_flags & SA_SIGINFO) != 0)
    handler.sa_sigaction(signal, info, context);
  else
    handler.sa_handler(signal);
  setitimer(ITIMER_REAL, &timer, nullptr);
  in_handler_of = 0;
}

/// In front of each handler that there is. The alarm has to come through in any case.
void take_signals() {
  for (std::size_t i = 0; i < std::size(signals); ++i) {
    sigaction(signals[i], nullptr, &handlers[i]);
    if (!is_a_function(handlers[i]) && signals[i] != SIGALRM) continue;
    struct sigaction ours {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // a second one ends the run
    sigaction(signals[i], &ours, nullptr);
  }
}

}  // namespace

void expect_the_worst(std::string_view input) noexcept {
  // Not at the program's start: an engine leaves signals alone that have a handler.
  static const bool once = (take_signals(), true);
  static_cast<void>(once);
  running = input;
}

}  // namespace fuzz

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  fuzz::artifact_prefix = "./";
  constexpr std::string_view option = "-artifact_prefix=";
  for (int i = 1; i < *argc; ++i)
    if (const std::string_view argument = (*argv)[i]; argument.starts_with(option))
      fuzz::artifact_prefix = argument.substr(option.size());
  return 0;
}
