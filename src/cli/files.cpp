#include "cli/files.hpp"

#include "cli/commands.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

struct Close {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  throw InputError(fmt::format("{}: cannot write: {}", path, std::strerror(error)));
}

/// Writes all of `text` to a new file. 0, or the errno of what failed.
int write_new(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      close(file);
      unlink(path.c_str());
      return error;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (close(file) == 0) return 0;
  const int error = errno;
  unlink(path.c_str());
  return error;
}

}  // namespace

void replace_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  // A link to a file stays one: what it points at is replaced.
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
  const std::string target = resolved.empty() ? path : resolved.string();
  struct stat status {};
  // Renaming over a device would take it away.
  if (stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw InputError(fmt::format("{}: cannot write: not a regular file", path));
  const std::string aside = fmt::format("{}.{}.new", target, getpid());
  if (const int error = write_new(aside, text); error != 0) fail_to_write(path, error);
  if (std::rename(aside.c_str(), target.c_str()) == 0) return;
  const int error = errno;
  unlink(aside.c_str());
  fail_to_write(path, error);
}

std::string read_file(const std::string& path, std::int64_t most_bytes) {
  std::error_code error;
  if (path != "-" && fs::is_directory(path, error)) throw InputError(path + ": is a folder, expected a file");
  const std::unique_ptr<std::FILE, Close> file{path == "-" ? stdin : std::fopen(path.c_str(), "rb")};
  if (!file) throw InputError(fmt::format("{}: {}", path, std::system_category().message(errno)));
  std::string text;
  std::array<char, 65536> block;
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block.data(), count);
    if (static_cast<std::int64_t>(text.size()) > most_bytes) break;
  }
  if (std::ferror(file.get()) != 0) throw InputError(path + ": cannot be read");
  return text;
}

}  // namespace cli
