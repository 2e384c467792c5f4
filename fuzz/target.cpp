#include "fuzz/target.hpp"

#include "fuzz/last_resort.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace fuzz {
namespace {

std::string& source() {
  static std::string file;
  return file;
}

bool skipped = false;

/// Ids in the environment's ATTNFUZZ_MUTE, each between two spaces: what is known to fail already, and would end every
/// run before anything else is found.
const std::string& muted() {
  static const char* const given = std::getenv("ATTNFUZZ_MUTE");
  static const std::string ids = fmt::format(" {} ", given == nullptr ? "" : given);
  return ids;
}

[[noreturn]] void die(const std::string& text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace

void set_source(std::string_view file) { source() = file; }

void skip(std::string_view reason) {
  if (!skipped) fmt::print(stderr, "{}: nothing is checked: {}\n", target_name, reason);
  skipped = true;
}

bool is_skipped() { return skipped; }

void require(const std::optional<properties::Finding>& finding, const batchtext::Case& parsed) {
  if (!finding || muted().find(" " + finding->id + " ") != std::string::npos) return;
  const std::string file = source().empty() ? "CRASH-FILE (its name follows this report)" : source();
  die(properties::report(*finding, parsed, fmt::format("{} {}", target_name, file)));
}

void require(bool holds, std::string_view what) {
  if (!holds) die(fmt::format("FINDING {}: {}\n", target_name, what));
}

}  // namespace fuzz

/// AddressSanitizer's defaults for a target that runs for hours: short stacks for allocations and a small quarantine,
/// which is what an execution's time goes into otherwise; junk in fresh memory, so that an entry that is never written
/// shows, and shows again; a null pointer where there is no memory.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=8:quarantine_size_mb=16:max_malloc_fill_size=1000000:allocator_may_return_null=1:"
         "detect_stack_use_after_return=0";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // libFuzzer gives the empty input as a null pointer.
  const std::string_view input =
      size == 0 ? std::string_view{} : std::string_view{reinterpret_cast<const char*>(data), size};
  fuzz::expect_the_worst(input);
  fuzz::run_input(input);
  return 0;
}
