// Recorded results of vLLM's own arithmetic, field by field.
#include "properties/golden.hpp"

#include "attn/split.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

const std::string folder = ATTNFUZZ_SOURCE_DIR "/corpus/golden/";
const std::string older = "upstream.jsonl";
const std::string newest = "vllm-0.33.0.jsonl";
const std::string newest_mla = "vllm-0.33.0-mla.jsonl";

struct Record {
  int line = 0;
  properties::GoldenOutcome outcome;
};

std::vector<Record> records_of(const std::string& name) {
  std::ifstream file{folder + name};
  EXPECT_TRUE(file) << name;
  std::vector<Record> records;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    auto outcome = properties::compare_golden(line);
    EXPECT_TRUE(outcome) << name << ":" << number << ": " << outcome.error();
    if (outcome) records.push_back({number, std::move(*outcome)});
  }
  return records;
}

using Counts = std::map<std::string, int>;

/// Every record matches, but for those whose answer a later release has changed: they differ, or would not be listed.
Counts count_matching(const std::string& name) {
  Counts counts;
  for (const auto& [line, outcome] : records_of(name)) {
    if (!outcome.superseded.empty()) {
      EXPECT_TRUE(outcome.mismatch) << name << ":" << line << ": matches, though " << outcome.superseded;
      ++counts[outcome.function + ", superseded"];
      continue;
    }
    EXPECT_FALSE(outcome.mismatch) << name << ":" << line << ": " << outcome.function << ": " << *outcome.mismatch;
    ++counts[outcome.function];
  }
  return counts;
}

TEST(Golden, every_record_matches) {
  EXPECT_EQ(count_matching(older), (Counts{{"build", 500},
                                           {"dcp_local_seq_lens", 250},
                                           {"local_attention", 250},
                                           {"reorder", 500},
                                           {"split_decodes_and_prefills", 492},
                                           {"split_decodes_and_prefills, superseded", 8},
                                           {"split_prefill_chunks", 500}}));
}

TEST(Golden, every_record_of_the_release_that_is_followed_matches) {
  EXPECT_EQ(newest, fmt::format("vllm-{}.jsonl", attn::upstream_release));
  EXPECT_EQ(newest_mla, fmt::format("vllm-{}-mla.jsonl", attn::upstream_release));
  EXPECT_EQ(count_matching(newest), (Counts{{"build", 400}, {"reorder", 400}, {"split_decodes_and_prefills", 400}}));
  EXPECT_EQ(count_matching(newest_mla), (Counts{{"mla_chunked_context", 400}}));
}

// What the library has no place for yet is counted, so that it is not taken for compared.
TEST(Golden, what_is_not_compared_is_counted) {
  Counts fields;
  for (const auto& record : records_of(newest))
    for (const std::string_view field : record.outcome.left_out) ++fields[std::string{field}];
  EXPECT_EQ(fields, (Counts{{"decode.swa", 137}, {"kv_sharing", 65}}));
}

std::string text_of(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

TEST(Golden, the_copies_are_the_originals) {
  const std::string originals = ATTNFUZZ_SOURCE_DIR "/../shared/golden/";
  if (!std::filesystem::exists(originals)) GTEST_SKIP() << originals << " is not on this machine";
  EXPECT_EQ(text_of(folder + older), text_of(originals + older));
  // The planner of chunks for MLA has a file of its own.
  std::string planner;
  std::string all_else;
  std::ifstream file{originals + newest};
  for (std::string line; std::getline(file, line);)
    (line.find(R"("fn":"mla_chunked_context")") == std::string::npos ? all_else : planner) += line + "\n";
  EXPECT_EQ(text_of(folder + newest), all_else);
  EXPECT_EQ(text_of(folder + newest_mla), planner);
}

/// A record with one number changed: each kind of field is looked at.
struct Change {
  const char* record;
  const char* from;
  const char* to;
  const char* field;
};

constexpr const char* build_record =
    R"({"fn":"build","unordered":false,"query_lens":[1,3,2],"seq_lens":[9,8,2],"decode_threshold":1,"workspace_tokens":4,"window_left":1,)"
    R"("out":{"split":[1,1,1,1,3,2],"decode":{"max_q":1,"min_q":1,"max_s":9,"qsl":[0,1]},"prefill":{"max_q":2,"min_q":2,"max_s":2,"qsl":[0,2]},)"
    R"("extend":{"max_q":3,"min_q":3,"max_s":8,"qsl":[0,3],"num_chunks":2,"chunk_starts":[[0],[4]],"cu":[[0,4],[0,1]],"lens":[[4],[1]],)"
    R"("seq_tot":[4,1],"max_seq_lens":[4,1],"token_to_batch":[[0,0,0,0],[0]],)"
    R"("swa":{"lens":[5],"cu":[0,5],"starts":[3],"token_to_batch":[0,0,0,0,0],"max":5,"total":5}},"num_actual_kv_tokens":19}})";

class GoldenField : public testing::TestWithParam<Change> {};

TEST_P(GoldenField, is_compared) {
  std::string record = GetParam().record;
  const auto whole = properties::compare_golden(record);
  ASSERT_TRUE(whole) << whole.error();
  ASSERT_FALSE(whole->mismatch) << *whole->mismatch;
  const auto at = record.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  record.replace(at, std::string{GetParam().from}.size(), GetParam().to);
  const auto changed = properties::compare_golden(record);
  ASSERT_TRUE(changed) << changed.error();
  ASSERT_TRUE(changed->mismatch) << GetParam().to;
  EXPECT_TRUE(changed->mismatch->starts_with(GetParam().field)) << *changed->mismatch;
}

INSTANTIATE_TEST_SUITE_P(
    Build, GoldenField,
    testing::Values(Change{build_record, "\"split\":[1", "\"split\":[2", "split"},
                    Change{build_record, "\"max_q\":1", "\"max_q\":2", "decode.max_q"},
                    Change{build_record, "\"min_q\":2", "\"min_q\":1", "prefill.min_q"},
                    Change{build_record, "\"max_s\":8", "\"max_s\":9", "extend.max_s"},
                    Change{build_record, "\"qsl\":[0,3]", "\"qsl\":[0,4]", "extend.qsl"},
                    Change{build_record, "\"num_chunks\":2", "\"num_chunks\":3", "num_chunks"},
                    Change{build_record, "[[0],[4]]", "[[0],[3]]", "chunk_starts"},
                    Change{build_record, "\"cu\":[[0,4]", "\"cu\":[[0,3]", "cu"},
                    Change{build_record, "\"lens\":[[4]", "\"lens\":[[3]", "extend.lens"},
                    Change{build_record, "\"seq_tot\":[4", "\"seq_tot\":[5", "seq_tot"},
                    Change{build_record, "\"max_seq_lens\":[4", "\"max_seq_lens\":[5", "max_seq_lens"},
                    Change{build_record, "[[0,0,0,0],[0]]", "[[0,0,0,0],[1]]", "token_to_batch"},
                    Change{build_record, "\"lens\":[5]", "\"lens\":[6]", "swa.lens"},
                    Change{build_record, "\"cu\":[0,5]", "\"cu\":[0,6]", "swa.cu"},
                    Change{build_record, "\"starts\":[3]", "\"starts\":[2]", "swa.starts"},
                    Change{build_record, "[0,0,0,0,0]", "[0,0,0,0,1]", "swa.token_to_batch"},
                    Change{build_record, "\"max\":5", "\"max\":6", "swa.max"},
                    Change{build_record, "\"total\":5", "\"total\":6", "swa.total"},
                    Change{build_record, "_kv_tokens\":19", "_kv_tokens\":18", "num_actual_kv_tokens"},
                    Change{build_record, "\"unordered\":false", "\"unordered\":true", "built"}));

constexpr const char* padded_record =
    R"({"fn":"build","query_lens":[1,0],"seq_lens":[9,0],"decode_threshold":1,"workspace_tokens":4,"window_left":null,)"
    R"("num_actual_tokens":2,"out":{"split":[2,0,0,2,0,0],"decode":{"max_q":1,"swa":null}}})";
constexpr const char* flagged_record =
    R"({"fn":"split_decodes_and_prefills","query_lens":[1,1],"seq_lens":[9,3],"decode_threshold":1,)"
    R"("require_uniform":false,"treat_short_extends_as_decodes":false,"is_prefilling":[false,true],"out":[1,1,1,1]})";
constexpr const char* prompt_record =
    R"({"fn":"reorder","num_scheduled_tokens":[1,1],"num_computed_tokens":[3,3],"num_prompt_tokens":[7,2],)"
    R"("decode_threshold":1,"modified":true,"order":[1,0]})";

INSTANTIATE_TEST_SUITE_P(
    Newest, GoldenField,
    testing::Values(Change{padded_record, "[2,0,0,2,0,0]", "[2,0,0,1,0,0]", "split"},
                    Change{padded_record, "\"num_actual_tokens\":2", "\"num_actual_tokens\":3", "split"},
                    Change{padded_record, "\"num_actual_tokens\":2", "\"num_actual_tokens\":0", "token_count"},
                    Change{flagged_record, "[false,true]", "[false,false]", "out"},
                    Change{flagged_record, "decodes\":false", "decodes\":true", "out"},
                    Change{prompt_record, "[7,2]", "[2,2]", "modified"},
                    Change{prompt_record, "[7,2]", "[2,7]", "modified"}));

INSTANTIATE_TEST_SUITE_P(
    Rooms, GoldenField,
    testing::Values(
        Change{
            R"({"fn":"split_decodes_and_prefills","query_lens":[1,3],"seq_lens":[9,3],"decode_threshold":1,"require_uniform":false,"out":[1,1,1,3]})",
            "[1,1,1,3]", "[1,1,1,4]", "out"},
        Change{
            R"({"fn":"split_prefill_chunks","seq_lens":[4,5],"workspace_tokens":8,"request_offset":1,"out":[[1,2],[2,3]]})",
            "[2,3]", "[2,4]", "out"},
        Change{
            R"({"fn":"reorder","num_scheduled_tokens":[4,1],"num_computed_tokens":[0,3],"decode_threshold":1,"modified":true,"order":[1,0]})",
            "[1,0]", "[0,1]", "order"},
        Change{
            R"({"fn":"reorder","num_scheduled_tokens":[4,1],"num_computed_tokens":[0,3],"decode_threshold":1,"modified":true,"order":[1,0]})",
            "true", "false", "modified"},
        Change{
            R"({"fn":"local_attention","attn_chunk_size":4,"block_size":2,"query_lens":[2],"seq_lens":[5],"block_table":[[7,8,9]],"out":{"cu_seqlens_q":[0,1,2],"seqlens_k":[4,1],"k_starts":[0,4],"block_table":[[7,8],[9,9]]}})",
            "[9,9]", "[9,8]", "block_table"},
        Change{R"({"fn":"dcp_local_seq_lens","seq_lens":[3],"dcp_size":2,"interleave":1,"out":[[2],[1]]})", "[[2]",
               "[[1]", "out"}));

TEST(Golden, what_is_no_record_says_why) {
  for (const char* line :
       {"", "{", "[]", R"({"fn":"other"})", R"({"fn":"build"})", R"({"fn":7})",
        R"({"fn":"build","query_lens":[1],"seq_lens":[1,2],"decode_threshold":1})",
        R"({"fn":"dcp_local_seq_lens","seq_lens":[3],"dcp_size":2000000000,"interleave":1,"out":[[2]]})",
        R"({"fn":"local_attention","query_lens":[2147483647,9],"seq_lens":[1,1]})",
        R"({"fn":"build","query_lens":[-1],"seq_lens":[1],"decode_threshold":1})"}) {
    const auto outcome = properties::compare_golden(line);
    ASSERT_FALSE(outcome) << line;
    EXPECT_FALSE(outcome.error().empty());
  }
}

}  // namespace
