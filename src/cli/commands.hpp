#pragma once

#include <CLI/CLI.hpp>

#include <stdexcept>
#include <string>

namespace cli {

/// What every command ends with.
enum ExitCode : int {
  fine = 0,
  finding = 1,    ///< an invariant does not hold, a comparison differs, no device answers
  bad_input = 2,  ///< the input or the command line makes no sense; nothing was written
};

/// Bad input: one line for stderr, exit code 2.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Each adds its subcommand to the program. When that is chosen, it runs and leaves its exit code in `exit_code`.
void add_check(CLI::App& app, int& exit_code);
void add_show(CLI::App& app, int& exit_code);
void add_reduce(CLI::App& app, int& exit_code);
void add_golden(CLI::App& app, int& exit_code);
void add_trace(CLI::App& app, int& exit_code);
void add_devices(CLI::App& app, int& exit_code);

}  // namespace cli
