#include "cli/guarded_check.hpp"

#include "cli/commands.hpp"
#include "cli/device_path.hpp"
#include "properties/death.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cli {
namespace {

/// Ends each field of a finding on its way between the processes; no text of a finding has it.
constexpr char end_of_field = '\0';

int answer_fd = -1;  // of the other process: where its answer goes

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(answer_fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void answer(std::initializer_list<std::string_view> fields) {
  for (const std::string_view field : fields) {
    write_all(field);
    write_all({&end_of_field, 1});
  }
}

void last_word() {
  answer({"crash", "the case is checked to its end", properties::invariant_in_progress(),
          "the process died while this was checked"});
  _exit(0);
}

/// Says in place of a finding that there is no device.
constexpr std::string_view no_device_id = "no device";

void check_and_answer(const batchtext::Case& parsed, Path path) {
  // Asked here and not before the fork: a runtime that drives a card does not survive one.
  if (path == Path::device)
    if (const auto reason = no_device_path()) return answer({no_device_id, "", "", *reason});
  const auto found = path == Path::device ? check_on_device(parsed) : properties::check_case(parsed);
  if (found) answer({found->id, found->claim, found->where, found->difference});
}

[[noreturn]] void check_and_exit(const batchtext::Case& parsed, Path path, bool quiet) {
  const int nowhere = quiet ? open("/dev/null", O_WRONLY) : -1;
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
  properties::call_on_death(last_word);
  alarm(longest_check_s);
  try {
    check_and_answer(parsed, path);
  } catch (const std::exception& error) {
    answer({"crash", "the case is checked to its end", properties::invariant_in_progress(), error.what()});
  }
  _exit(0);
}

std::string read_answer(int fd) {
  std::string text;
  std::array<char, 4096> block;
  while (true) {
    const ssize_t count = read(fd, block.data(), block.size());
    if (count > 0) text.append(block.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;
  }
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::optional<properties::Finding> finding_of(std::string_view text, int status) {
  std::array<std::string, 4> fields;
  std::size_t count = 0;
  for (std::size_t end = text.find(end_of_field); end != std::string_view::npos && count < fields.size();
       end = text.find(end_of_field)) {
    fields[count++] = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  if (count == fields.size()) return properties::Finding{fields[0], fields[1], fields[2], fields[3]};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return properties::Finding{"hang", "the case is checked to its end", "check",
                               fmt::format("still running after {} s", longest_check_s)};
  return properties::Finding{"crash", "the case is checked to its end", "check",
                             WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status))
                                                 : fmt::format("ended with {}", WEXITSTATUS(status))};
}

}  // namespace

std::optional<properties::Finding> guarded_check(const batchtext::Case& parsed, Path path, bool quiet) {
  std::fflush(nullptr);  // or the other process could print it once more
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw InputError(fmt::format("no pipe for a check: {}", std::strerror(errno)));
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    throw InputError(fmt::format("no process for a check: {}", std::strerror(errno)));
  }
  if (child == 0) {
    close(ends[0]);
    answer_fd = ends[1];
    check_and_exit(parsed, path, quiet);
  }
  close(ends[1]);
  const std::string text = read_answer(ends[0]);
  close(ends[0]);
  auto finding = finding_of(text, wait_for(child));
  if (finding && finding->id == no_device_id) throw InputError(finding->difference);
  return finding;
}

}  // namespace cli
