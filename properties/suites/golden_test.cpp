// Recorded results of vLLM's own arithmetic, field by field.
#include "properties/golden.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace {

const std::string golden = ATTNFUZZ_SOURCE_DIR "/corpus/golden/upstream.jsonl";

TEST(Golden, every_record_matches) {
  std::ifstream file{golden};
  ASSERT_TRUE(file);
  std::map<std::string, int> records;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto outcome = properties::compare_golden(line);
    ASSERT_TRUE(outcome) << "line " << number << ": " << outcome.error();
    EXPECT_FALSE(outcome->mismatch) << "line " << number << ": " << outcome->function << ": " << *outcome->mismatch;
    ++records[outcome->function];
  }
  EXPECT_EQ(records, (std::map<std::string, int>{{"build", 500},
                                                 {"dcp_local_seq_lens", 250},
                                                 {"local_attention", 250},
                                                 {"reorder", 500},
                                                 {"split_decodes_and_prefills", 500},
                                                 {"split_prefill_chunks", 500}}));
}

TEST(Golden, the_copy_is_the_original) {
  const std::string original = ATTNFUZZ_SOURCE_DIR "/../shared/golden/upstream.jsonl";
  if (!std::filesystem::exists(original)) GTEST_SKIP() << original << " is not on this machine";
  std::ifstream a{golden}, b{original};
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>{a}, {}}), (std::string{std::istreambuf_iterator<char>{b}, {}}));
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
                    Change{build_record, "\"lens\":[[4]", "\"lens\":[[3]", "lens"},
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
