#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>

namespace cli {

/// How far a run is, on stderr, once it takes longer than two seconds. A terminal has one line that is redrawn, with a
/// bar where the share is known; anything else gets a plain line every five seconds.
///
/// No line is wider than the terminal. The line is gone when the object is, however the run ends.
class Progress {
 public:
  /// What a run has done so far.
  struct State {
    std::int64_t count = 0;       ///< what the rate is taken of
    std::optional<double> share;  ///< of the whole run, 0 to 1; none where the whole is not known
    std::string text;             ///< the numbers in words: "3 of 90 inputs checked"
  };

  /// The run starts now. `command` begins a plain line; `unit` is what a rate counts: "steps" for "120 steps/s".
  Progress(std::string command, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// To be called often. `state` makes the State, and is asked only when a line is due.
  void update(const std::invocable auto& state) {
    const double elapsed_s = this->elapsed_s();
    if (elapsed_s >= next_s_) show(state(), elapsed_s);
  }

  /// Takes the line off the terminal, for what is printed next; the next update draws it again.
  void clear() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void show(const State& state, double elapsed_s);

  std::string command_;
  std::string unit_;
  Clock::time_point start_ = Clock::now();
  bool is_terminal_;
  bool is_drawn_ = false;
  double next_s_;
};

}  // namespace cli
