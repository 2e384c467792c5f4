// Runs a fuzz target on files, without a fuzzing engine: any compiler builds it.
#include "fuzz/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

/// The files named, and those in the folders named, in the order of their names.
std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

bool run_file(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  if (!in) return false;
  // On the heap in its exact size: a read past the end of the input shows.
  const std::vector<char> text{std::istreambuf_iterator<char>{in}, {}};
  fuzz::set_source(file.string());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    fmt::print(
        "{0}: runs the fuzz target on files\n\n  {0} FILE|FOLDER...\n\nExample: {0} corpus/seeds corpus/regressions\n"
        "A finding is reported on stderr and aborts. Exit code 2: a file that cannot be read.\n",
        fuzz::target_name);
    return args.empty() ? 2 : 0;
  }
  std::size_t count = 0;
  for (const std::string& arg : args) {
    std::error_code error;
    if (!fs::exists(arg, error)) {
      fmt::print(stderr, "{}: {}: no such file or folder\n", fuzz::target_name, arg);
      return 2;
    }
    for (const fs::path& file : files_of(arg)) {
      if (!run_file(file)) {
        fmt::print(stderr, "{}: {}: cannot be read\n", fuzz::target_name, file.string());
        return 2;
      }
      ++count;
    }
  }
  fmt::print("{}: {} inputs run, no finding\n", fuzz::target_name, count);
  return 0;
}
