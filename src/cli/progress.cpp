#include "cli/progress.hpp"

#include "cli/numbers.hpp"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <utility>

namespace cli {
namespace {

/// Shorter runs are over before anybody wonders.
constexpr double first_after_s = 2;
/// Often enough to look alive on a terminal, seldom enough not to fill a log.
constexpr double redraw_every_s = 0.2;
constexpr double log_every_s = 5;

/// What a terminal has that does not tell its width.
constexpr std::size_t default_columns = 80;
constexpr std::size_t max_bar_cells = 30;
/// A shorter bar says less than the percentage beside it.
constexpr std::size_t min_bar_cells = 8;

constexpr const char* to_line_start = "\r";
constexpr const char* clear_to_line_end = "\x1b[K";

/// Asked at each line: people resize terminals.
std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : default_columns;
}

std::string rate_text(std::int64_t count, double elapsed_s) {
  const double rate = static_cast<double>(count) / elapsed_s;
  return rate < 10 ? fmt::format("{:.1f}", rate) : grouped(std::llround(rate));
}

std::string duration_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

/// "[###...] " with its space, or nothing where there is too little room.
std::string bar_text(double share, std::size_t room) {
  constexpr std::size_t frame = 3;
  if (room < min_bar_cells + frame) return "";
  const std::size_t cells = std::min(max_bar_cells, room - frame);
  const auto done = std::min(cells, static_cast<std::size_t>(share * static_cast<double>(cells)));
  return fmt::format("[{:#<{}}{:.<{}}] ", "", done, "", cells - done);
}

}  // namespace

Progress::Progress(std::string command, std::string unit)
    : command_(std::move(command)),
      unit_(std::move(unit)),
      is_terminal_(isatty(STDERR_FILENO) != 0),
      next_s_(first_after_s) {}

Progress::~Progress() { clear(); }

void Progress::clear() noexcept {
  if (!is_drawn_) return;
  is_drawn_ = false;
  // Back at the next update: a run that prints often would hardly show it otherwise.
  next_s_ = 0;
  std::fputs(to_line_start, stderr);
  std::fputs(clear_to_line_end, stderr);
  std::fflush(stderr);
}

void Progress::show(const State& state, double elapsed_s) {
  next_s_ = elapsed_s + (is_terminal_ ? redraw_every_s : log_every_s);
  std::string numbers = fmt::format("{}  {} {}/s", state.text, rate_text(state.count, elapsed_s), unit_);
  const double share = std::clamp(state.share.value_or(0), 0.0, 1.0);
  // Rounded down: only a run that is over reads 100 %.
  if (state.share) numbers = fmt::format("{:3.0f} %  {}", std::floor(100 * share), numbers);
  if (share > 0) numbers += fmt::format("  {} left", duration_text(elapsed_s * (1 - share) / share));

  // With fputs, that a stderr nobody reads does not end the run.
  if (!is_terminal_) {
    std::fputs(fmt::format("{}: {}\n", command_, numbers).c_str(), stderr);
    return;
  }
  // A line that reaches the last column would wrap on some terminals, and then clearing it leaves half of it behind.
  const std::size_t room = terminal_columns() - 1;
  if (numbers.size() > room) numbers.resize(room);
  const std::string bar = state.share ? bar_text(share, room - numbers.size()) : "";
  std::fputs(fmt::format("{}{}{}{}", to_line_start, bar, numbers, clear_to_line_end).c_str(), stderr);
  std::fflush(stderr);
  is_drawn_ = true;
}

}  // namespace cli
