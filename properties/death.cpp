#include "properties/death.hpp"

#include <csignal>
#include <initializer_list>

extern "C" {
/// There in a build with a sanitizer, which has the fatal signals to itself.
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
}

namespace properties {
namespace {

void (*last_word)() = nullptr;

void on_signal(int signal) {
  last_word();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void call_on_death(void (*callback)()) {
  last_word = callback;
  // Sanitizers leave abort alone.
  std::signal(SIGABRT, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(callback);
    return;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_signal);
}

}  // namespace properties
