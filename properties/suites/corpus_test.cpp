// The corpus gate: every file of the corpus parses, says what it is, prints back to the same case, and holds.
#include "batchtext/batchtext.hpp"
#include "properties/check.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  EXPECT_TRUE(in) << file;
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::vector<fs::path> files_of(std::string_view folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path{ATTNFUZZ_SOURCE_DIR} / "corpus" / folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class Corpus : public testing::TestWithParam<const char*> {};

TEST_P(Corpus, is_not_empty_and_every_file_holds) {
  const auto files = files_of(GetParam());
  ASSERT_FALSE(files.empty());
  std::size_t steps = 0;
  for (const fs::path& file : files) {
    const std::string text = read(file);
    EXPECT_EQ(file.extension(), ".batch") << file;
    EXPECT_TRUE(text.starts_with("# ")) << file << ": the first comment says what it is";
    const auto parsed = batchtext::parse(text);
    ASSERT_TRUE(parsed) << batchtext::message(parsed.error(), file.string());
    const auto again = batchtext::parse(batchtext::print(*parsed));
    ASSERT_TRUE(again) << file;
    EXPECT_EQ(*again, *parsed) << file;
    if (const auto finding = properties::check_case(*parsed))
      ADD_FAILURE() << properties::report(*finding, *parsed, "attnfuzz check " + file.string());
    steps += parsed->steps.size();
  }
  fmt::print("corpus/{}: {} files, {} steps\n", GetParam(), files.size(), steps);
}

INSTANTIATE_TEST_SUITE_P(Folders, Corpus, testing::Values("seeds", "regressions"),
                         [](const auto& info) { return std::string{info.param}; });

TEST(Corpus, has_the_shapes_every_reviewer_asks_for) {
  for (const char* shape : {"empty", "decode-only", "prefill-only", "extend-only", "mixed", "zero-chunks", "padded"})
    EXPECT_TRUE(fs::exists(fs::path{ATTNFUZZ_SOURCE_DIR} / "corpus/seeds" / fmt::format("shape-{}.batch", shape)))
        << shape;
}

TEST(Corpus, has_batches_of_real_traffic) {
  const auto files = files_of("seeds");
  const auto count = std::count_if(files.begin(), files.end(), [](const fs::path& file) {
    return file.string().find("/traces/") != std::string::npos;
  });
  EXPECT_GE(count, 200);
}

}  // namespace
