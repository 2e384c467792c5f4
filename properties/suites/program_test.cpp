// The program as people run it: what it prints, what it writes, what it ends with.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

const fs::path source = ATTNFUZZ_SOURCE_DIR;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;

  [[nodiscard]] auto error_lines() const { return std::count(err.begin(), err.end(), '\n'); }
};

std::string read(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::string quoted(const std::string& word) { return "'" + std::regex_replace(word, std::regex{"'"}, "'\\''") + "'"; }

/// A folder of its own for each test, and the program run in it.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "attnfuzz-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  Outcome run(const std::vector<std::string>& args, const std::string& input = "",
              const std::string& program = ATTNFUZZ_PROGRAM) {
    // Beside the folder, so that a test can see what a run wrote into it.
    const std::string files = folder.string() + "-run";
    std::ofstream{files + ".in", std::ios::binary} << input;
    std::string command = "cd " + quoted(folder.string()) + " && " + quoted(program);
    for (const std::string& arg : args) command += " " + quoted(arg);
    command += " <" + quoted(files + ".in") + " >" + quoted(files + ".out") + " 2>" + quoted(files + ".err");
    const int status = std::system(command.c_str());
    Outcome result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(files + ".out"), read(files + ".err")};
    for (const char* end : {".in", ".out", ".err"}) fs::remove(files + end);
    return result;
  }
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream{folder / name, std::ios::binary} << text;
    return folder / name;
  }
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
  }

  fs::path folder;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Program, check_says_what_holds) {
  const Outcome result = run({"check", "8q1s1k_q16s4k_2q2k", "--threshold", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "8q1s1k_q16s4k_2q2k: ok, 8 decodes, 1 extends, 2 prefills, 0 padding, 1 chunks\n");
}

TEST_F(Program, check_takes_files_stdin_and_batches_in_one_call) {
  const fs::path file = write("a.batch", "attnfuzz 1\nbatch 2q3s0\n");
  const Outcome result = run({"check", file.string(), "-", "3q1"}, "attnfuzz 1\nbatch q1s9\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "a.batch: ok, 0 decodes, 2 extends")) << result.out;
  EXPECT_TRUE(contains(result.out, "-: ok, 1 decodes")) << result.out;
  EXPECT_TRUE(contains(result.out, "3 checked, 0 with a finding")) << result.out;
}

TEST_F(Program, check_tells_what_the_contract_refuses_and_reorder_mends_it) {
  const Outcome refused = run({"check", "2q1k_32q1s1k"});
  EXPECT_EQ(refused.exit_code, 0);
  EXPECT_TRUE(contains(refused.out, "refused, as the contract says: unordered: request 2 has 1023 context tokens"))
      << refused.out;
  const Outcome ordered = run({"check", "2q1k_32q1s1k", "--reorder"});
  EXPECT_TRUE(contains(ordered.out, "32 decodes, 0 extends, 2 prefills")) << ordered.out;
}

/// A command line or input that makes no sense, and what the one line about it has in it.
struct Bad {
  std::vector<std::string> args;
  std::string part;
};

TEST_F(Program, bad_input_is_one_line_and_exit_code_2_and_nothing_written) {
  write("bad.batch", "attnfuzz 1\nbatch q1s2\nwindow_left far\n");
  write("bad.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04,many,8\n");
  write("bad.jsonl",
        "{\"fn\":\"reorder\",\"num_scheduled_tokens\":[1],\"num_computed_tokens\":[1],\"decode_threshold\":1,"
        "\"modified\":false,\"order\":[0]}\n{\"fn\":\n");
  write("empty", "");
  write("zero.jsonl", R"({"fn":"dcp_local_seq_lens","seq_lens":[3],"dcp_size":1,"interleave":1,"out":[[3]]})" +
                          std::string(1, '\0') + "more\n");
  write("good.batch", "attnfuzz 1\nbatch q1s2\n");
  const auto before = files();
  const std::vector<Bad> all{
      {{"check", "bad.batch"}, "bad.batch:3:13: expected a number, found 'far'"},
      {{"check", "q1s"}, "q1s:1:4: expected a number"},
      {{"check", "nothing.batch"}, "nothing.batch: no such file"},
      {{"check", "."}, ".: is a folder"},
      {{"check", "empty"}, "empty:1:1: empty"},
      {{"check"}, "input is required"},
      {{"check", "q1", "--threshold", "four"}, "--threshold"},
      {{"check", "q1", "--threshold", "99999999999"}, "--threshold"},
      {{"check", "q1", "--policy", "fair"}, "--policy"},
      {{"show", "bad.batch", "--svg", "out.svg"}, "bad.batch:3:13"},
      {{"show", "q5s9", "--svg", "no/such/folder/out.svg"}, "no/such/folder/out.svg"},
      {{"show", "q5s9", "--step", "4"}, "step"},
      {{"reduce", "bad.batch"}, "bad.batch:3:13"},
      {{"reduce", "q1", "--seconds", "-3"}, "--seconds"},
      {{"golden", "bad.jsonl"}, "bad.jsonl:2:1: "},
      {{"golden", "nothing.jsonl"}, "nothing.jsonl: cannot be read"},
      {{"golden", "empty"}, "empty: holds no record"},
      {{"trace", "bad.csv", "--emit", "steps"}, "bad.csv:3:"},
      {{"trace", "nothing.csv"}, "nothing.csv"},
      {{"trace", "empty"}, "empty:1:"},
      {{"polish"}, "polish"},
      {{"check", "a\nb"}, "no such file"},
      {{"check", "q1", "--threshold", "010"}, "'010' is not a whole number"},
      {{"check", "q1", "--workspace", "0x10"}, "'0x10' is not a whole number"},
      {{"golden", "bad.jsonl", "--show", "-1"}, "--show"},
      {{"golden", "zero.jsonl"}, "zero.jsonl:1:1: "},
      {{"golden", "/dev/zero"}, "/dev/zero:1:1: a line of more than"},
      {{"reduce", "q1", "--seconds", "nan"}, "'nan' is no time in seconds"},
      {{"show", "good.batch", "--svg", "good.batch"}, "is one of the inputs"},
      {{"trace", "good.batch"}, "good.batch:1:"},
      {{}, "A subcommand is required"},
  };
  for (const Bad& bad : all) {
    const Outcome result = run(bad.args);
    const std::string what = testing::PrintToString(bad.args) + "\n" + result.out + result.err;
    EXPECT_EQ(result.exit_code, 2) << what;
    EXPECT_EQ(result.error_lines(), 1) << what;
    EXPECT_TRUE(contains(result.err, bad.part)) << what;
    EXPECT_EQ(result.out, "") << what;
    EXPECT_EQ(files(), before) << what;
  }
}

TEST_F(Program, output_that_does_not_arrive_is_an_error) {
  for (const char* command : {"check q5s9", "show q5s9", "show q5s9 --json", "--help"}) {
    const std::string line =
        quoted(ATTNFUZZ_PROGRAM) + " " + command + " >/dev/full 2>" + quoted((folder / "err").string());
    const int status = std::system(line.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << command;
    EXPECT_EQ(read(folder / "err"), "attnfuzz: stdout: cannot be written\n") << command;
  }
}

// Every request of its own: the cases to try are many, and none of them may be made before it is wanted.
TEST_F(Program, reduce_keeps_to_its_time_on_a_large_batch) {
  std::string text = "attnfuzz 1\nworkspace_tokens 2147483647\nbatch q2s3";
  for (int i = 0; i < 12000; ++i) text += "_q" + std::to_string(2 + i % 50) + "s" + std::to_string(60 + i % 499);
  write("a.batch", text + "\n");
  const Outcome result = run({"reduce", "a.batch", "--seconds", "0"}, "", ATTNFUZZ_PLANTED_PROGRAM);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(contains(result.out, "0 of 0 smaller cases kept, stopped by --seconds")) << result.out.substr(0, 2000);
}

TEST_F(Program, help_has_examples) {
  EXPECT_TRUE(contains(run({"--help"}).out, "attnfuzz check 8q1s1k"));
  for (const char* command : {"check", "show", "reduce", "golden", "trace", "devices"}) {
    const Outcome result = run({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(contains(result.out, "Example")) << result.out;
    EXPECT_TRUE(contains(result.out, std::string{"attnfuzz "} + command)) << result.out;
  }
}

TEST_F(Program, show_draws_in_the_terminal_and_in_svg) {
  const Outcome result = run({"show", "4q1s90_3q16s80_2q12", "--workspace", "64", "--svg", "out.svg"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "num_chunks 4")) << result.out;
  const std::string svg = read(folder / "out.svg");
  EXPECT_TRUE(contains(svg, "<svg")) << svg.substr(0, 200);
  EXPECT_TRUE(contains(svg, "</svg>"));
  EXPECT_EQ(files(), std::set<std::string>{"out.svg"});
}

// ---- the device path, on the simulated device -----------------------------------------------------------------------

#ifdef ATTNFUZZ_PLANTED_DEVICE_PROGRAM

TEST_F(Program, devices_says_what_is_built_in_and_what_answers) {
  const Outcome result = run({"devices"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("runtime: sim, ")) << result.out;
  EXPECT_TRUE(contains(result.out, "\ndevice 0: simulated device 0, ")) << result.out;
  const auto json = nlohmann::json::parse(run({"devices", "--json"}).out);
  EXPECT_EQ(json.at("runtime"), "sim");
  EXPECT_EQ(json.at("devices").size(), 1u);
}

TEST_F(Program, check_holds_the_device_path) {
  const Outcome result = run({"check", "8q1s1k_q16s4k_2q2k", "2q1k_32q1s1k", "--device"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "8q1s1k_q16s4k_2q2k: ok, 8 decodes")) << result.out;
  EXPECT_TRUE(contains(result.out, "refused, as the contract says: unordered")) << result.out;
  const Outcome large = run({"check", "q2147483647", "--device"});
  EXPECT_TRUE(contains(large.out, "1 of 1 steps too large for the device, NOT checked there")) << large.out;
  EXPECT_EQ(run({"show", "q2147483647", "--device"}).exit_code, 2);
}

TEST_F(Program, show_prints_what_comes_back_from_the_device) {
  write("a.batch", "attnfuzz 1\nworkspace_tokens 8\nbatch 2q4s30\nseq_lens_upper_bound 40 50\n");
  const Outcome result = run({"show", "a.batch", "--device"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // As many passes as the bounds need, of which the exact lengths fill fewer.
  EXPECT_TRUE(contains(result.out, "num_chunks 12")) << result.out;
  EXPECT_TRUE(contains(result.out, "extend   seq_len 30 to 30")) << result.out;
  EXPECT_TRUE(contains(result.out, "kv tokens 60, passes with a token 7")) << result.out;
}

TEST_F(Program, a_finding_of_the_device_path_is_reported_and_reduced) {
  write("a.batch",
        "attnfuzz 1\nworkspace_tokens 64\nbatch 4q1s90_5q16s80_2q12\nseq_lens_upper_bound 90 90 90 90 99 99 99 99 99 "
        "12 12\n");
  const Outcome checked = run({"check", "a.batch", "--device"}, "", ATTNFUZZ_PLANTED_DEVICE_PROGRAM);
  EXPECT_EQ(checked.exit_code, 1) << checked.err;
  for (const char* part : {"a.batch: FINDING D1: ", "context.token_to_batch",
                           "repeat:  attnfuzz check a.batch --device", "EXPECT_HOLDS_ON_DEVICE", "TEST_F(Device, "})
    EXPECT_TRUE(contains(checked.out, part)) << part << " in\n" << checked.out;
  // The case says by whose rules the device runs, and the finding repeats it.
  EXPECT_TRUE(contains(checked.out, ", by portable rules\n")) << checked.out;
  write("b.batch", "attnfuzz 1\nschedule_seed 4\nbatch q2s4\nseq_lens_upper_bound 5\n");
  const Outcome other = run({"check", "b.batch", "--device"}, "", ATTNFUZZ_PLANTED_DEVICE_PROGRAM);
  EXPECT_TRUE(contains(other.out, ", by AMD's rules\n")) << other.out;
  EXPECT_EQ(run({"check", "a.batch"}, "", ATTNFUZZ_PLANTED_DEVICE_PROGRAM).exit_code, 0);
  const Outcome reduced =
      run({"reduce", "a.batch", "--device", "--seconds", "30"}, "", ATTNFUZZ_PLANTED_DEVICE_PROGRAM);
  EXPECT_EQ(reduced.exit_code, 1) << reduced.err;
  // One extend whose bound is a token above its exact length.
  EXPECT_TRUE(contains(reduced.out, "\nattnfuzz 1\nbatch q2")) << reduced.out;
  EXPECT_TRUE(contains(reduced.out, "--device")) << reduced.out;
}

#endif

TEST_F(Program, show_prints_json_other_programs_can_read) {
  const Outcome result = run({"show", "2q3s0", "q5s20", "--workspace", "8", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out);
  ASSERT_EQ(document.at("cases").size(), 2u);
  EXPECT_EQ(document["cases"][0]["name"], "2q3s0");
  EXPECT_TRUE(contains(document["cases"][0].dump(), "\"num_chunks\":0"));
  EXPECT_TRUE(contains(document["cases"][1].dump(), "\"num_chunks\":2"));
}

TEST_F(Program, reduce_has_nothing_to_do_where_all_holds) {
  const Outcome result = run({"reduce", "8q1s1k_q16s4k"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "8q1s1k_q16s4k: no finding, nothing to reduce\n");
  EXPECT_TRUE(files().empty());
}

TEST_F(Program, golden_counts_matches_and_shows_differences) {
  const Outcome all = run({"golden", (source / "corpus/golden/upstream.jsonl").string()});
  EXPECT_EQ(all.exit_code, 0) << all.out;
  EXPECT_TRUE(std::regex_search(all.out, std::regex{"all +2492 +0 +8\n"})) << all.out;
  EXPECT_TRUE(contains(all.out, "since 0.31 empty rows among uniform decodes are skipped (8 records)")) << all.out;
  write(
      "one.jsonl",
      R"({"fn":"reorder","num_scheduled_tokens":[4,1],"num_computed_tokens":[0,3],"decode_threshold":1,"modified":true,"order":[0,1]})");
  const Outcome one = run({"golden", "one.jsonl"});
  EXPECT_EQ(one.exit_code, 1);
  EXPECT_TRUE(contains(one.out, "one.jsonl:1: reorder: order: [1,0], expected [0,1]")) << one.out;
}

TEST_F(Program, trace_turns_requests_into_batches_that_hold) {
  std::string csv = "timestamp_ms,input_length,output_length\n";
  for (int i = 0; i < 60; ++i)
    csv += std::to_string(i * 20) + "," + std::to_string(100 + i * 37) + "," + std::to_string(3 + i % 9) + "\n";
  write("t.csv", csv);
  const Outcome result = run(
      {"trace", "t.csv", "--max-num-batched-tokens", "512", "--check-every", "1", "--emit", "steps", "--every", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "steps/s")) << result.out;
  std::vector<std::string> args{"check", "--quiet"};
  for (const auto& entry : fs::directory_iterator(folder / "steps")) args.push_back(entry.path().string());
  ASSERT_GT(args.size(), 4u);
  const Outcome checked = run(args);
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
  EXPECT_TRUE(contains(checked.out, " 0 with a finding")) << checked.out;
}

// ---- with a planted fault: C1, the last token of every context is lost
// -----------------------------------------------

constexpr const char* large_batch =
    "attnfuzz 1\ndecode_threshold 2\nworkspace_tokens 64\nwindow_left 9\nbatch "
    "3q1s90_q16s80_q7s900_q9s17_4q12_3q0\nthen\n"
    "batch 4q9s60\n";

TEST_F(Program, check_reports_a_finding) {
  write("a.batch", large_batch);
  const Outcome result = run({"check", "a.batch", "3q1", "--window", "5"}, "", ATTNFUZZ_PLANTED_PROGRAM);
  EXPECT_EQ(result.exit_code, 1);
  for (const char* part :
       {"a.batch: FINDING C1: every context token is gathered exactly once", "step 1, extend 0", "window_left 5",
        "repeat:  attnfuzz check a.batch --window 5", "EXPECT_HOLDS", "3q1: ok", "2 checked, 1 with a finding"})
    EXPECT_TRUE(contains(result.out, part)) << part << " in\n" << result.out;
}

TEST_F(Program, reduce_prints_the_smallest_case_and_keeps_the_first) {
  write("a.batch", large_batch);
  const Outcome result = run({"reduce", "a.batch", "--seconds", "30"}, "", ATTNFUZZ_PLANTED_PROGRAM);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(contains(result.out, "FINDING C1")) << result.out;
  // One extend with one token of context, all settings back to their defaults.
  EXPECT_TRUE(contains(result.out, "\nattnfuzz 1\nbatch q2s3\n\n")) << result.out;
  EXPECT_TRUE(contains(result.out, "none smaller has the finding; run again: same finding")) << result.out;
  const auto names = files();
  ASSERT_EQ(names.size(), 3u);
  for (const std::string& name : names) {
    const Outcome again = run({"check", name}, "", ATTNFUZZ_PLANTED_PROGRAM);
    EXPECT_EQ(again.exit_code, 1) << name;
    EXPECT_TRUE(contains(again.out, "FINDING C1")) << again.out;
  }
  EXPECT_TRUE(contains(result.out, "repeat:  attnfuzz check " + *std::next(names.begin()))) << result.out;
  EXPECT_TRUE(std::next(names.begin())->starts_with("reduced-C1-"));
  EXPECT_TRUE(names.rbegin()->starts_with("unshrunk-C1-"));
}

// S4's planted fault reads lengths nobody may touch: the process that checks dies.
TEST_F(Program, a_crash_is_a_finding_like_any_other) {
  write("a.batch", "attnfuzz 1\ndecode_threshold 4\nwindow_left 7\nbatch 3q4s90_q2s7\n");
  const Outcome checked = run({"check", "a.batch", "q5s9"}, "", ATTNFUZZ_CRASHING_PROGRAM);
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_TRUE(contains(checked.out, "FINDING crash: the case is checked to its end")) << checked.out;
  EXPECT_TRUE(contains(checked.out, "where:   S4\ndiffers: the process died while this was checked")) << checked.out;
  EXPECT_TRUE(contains(checked.out, "q5s9: ok")) << "and the next input is checked";
  const Outcome reduced = run({"reduce", "a.batch"}, "", ATTNFUZZ_CRASHING_PROGRAM);
  EXPECT_EQ(reduced.exit_code, 1);
  EXPECT_TRUE(contains(reduced.out, "\nattnfuzz 1\nbatch q1\n\n")) << reduced.out;
}

TEST_F(Program, golden_finds_the_fault_too) {
  const Outcome result =
      run({"golden", (source / "corpus/golden/upstream.jsonl").string(), "--show", "3"}, "", ATTNFUZZ_PLANTED_PROGRAM);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(std::regex_search(result.out, std::regex{"upstream.jsonl:[0-9]+: build: C1: "})) << result.out;
}

TEST_F(Program, trace_writes_the_step_with_the_finding) {
  write("t.csv", "timestamp_ms,input_length,output_length\n0,3000,3\n1,2500,2\n");
  const Outcome result =
      run({"trace", "t.csv", "--max-num-batched-tokens", "1024", "--check-every", "1"}, "", ATTNFUZZ_PLANTED_PROGRAM);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_TRUE(contains(result.out + result.err, "FINDING C1")) << result.out;
  const auto names = files();
  ASSERT_EQ(names.size(), 2u);
  EXPECT_TRUE(names.rbegin()->starts_with("trace-finding-")) << *names.rbegin();
  EXPECT_EQ(run({"check", *names.rbegin()}, "", ATTNFUZZ_PLANTED_PROGRAM).exit_code, 1);
}

TEST_F(Program, a_fuzz_target_aborts_with_the_report) {
  const fs::path file = write("a.batch", large_batch);
  const Outcome result = run({file.string()}, "", ATTNFUZZ_PLANTED_TARGET);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(contains(result.err, "FINDING C1")) << result.err;
  EXPECT_TRUE(contains(result.err, "repeat:  fuzz_metadata " + file.string())) << result.err;
}

TEST_F(Program, a_replay_says_what_it_cannot_read) {
  EXPECT_EQ(run({"nothing.batch"}, "", ATTNFUZZ_PLANTED_TARGET).exit_code, 2);
  EXPECT_EQ(run({}, "", ATTNFUZZ_PLANTED_TARGET).exit_code, 2);
  const Outcome help = run({"--help"}, "", ATTNFUZZ_PLANTED_TARGET);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(contains(help.out, "Examples:\n  fuzz_metadata")) << help.out;
  const Outcome no_number = run({"--draw", "many"}, "", ATTNFUZZ_PLANTED_TARGET);
  EXPECT_EQ(no_number.exit_code, 2);
  EXPECT_EQ(no_number.err, "fuzz_metadata: --draw needs a whole number, not 'many'\n");
}

#ifdef ATTNFUZZ_CORRUPTED_HEAP
// libFuzzer's handler waited for malloc's lock, which the call that found the heap corrupted had, until somebody killed
// the run; and no input was left.
TEST_F(Program, a_run_that_corrupts_the_heap_ends_and_leaves_its_input) {
  write("input", "any bytes");
  const Outcome result = run({"-artifact_prefix=found-", "input"}, "", ATTNFUZZ_CORRUPTED_HEAP);
  EXPECT_EQ(result.exit_code, 77) << result.err;
  EXPECT_TRUE(contains(result.err, "deadly signal")) << result.err;
  std::smatch written;
  ASSERT_TRUE(std::regex_search(result.err, written, std::regex{"Test unit written to (found-crash-[0-9a-f]+)\n"}))
      << result.err;
  EXPECT_EQ(read(folder / written[1].str()), "any bytes");
}
#endif

TEST_F(Program, a_replay_draws_cases_and_leaves_the_one_that_does_not_hold) {
  const Outcome result = run({"--draw", "1000", "--seed", "7"}, "", ATTNFUZZ_PLANTED_TARGET);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(contains(result.err, "FINDING C1")) << result.err;
  const auto names = files();
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(std::regex_match(*names.begin(), std::regex{"drawn-[0-9]+\\.batch"})) << *names.begin();
  EXPECT_TRUE(contains(result.err, "repeat:  fuzz_metadata " + *names.begin())) << result.err;
  const Outcome again = run({*names.begin()}, "", ATTNFUZZ_PLANTED_TARGET);
  EXPECT_TRUE(contains(again.err, "FINDING C1")) << again.err;
}

// ---- targets --------------------------------------------------------------------------------------------------------

std::vector<std::string> targets() {
  std::vector<std::string> names;
  std::ifstream file{fs::path{ATTNFUZZ_FUZZ_DIR} / "targets.txt"};
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) names.push_back(line);
  return names;
}

TEST(Readme, has_a_row_for_every_target_and_no_other) {
  std::set<std::string> rows;
  std::istringstream readme{read(source / "README.md")};
  const std::regex row{R"(^\| `(fuzz_[a-z_]+)` \|.*\|.*\|$)"};
  std::smatch match;
  for (std::string line; std::getline(readme, line);)
    if (std::regex_match(line, match, row)) rows.insert(match[1]);
  const auto built = targets();
  EXPECT_FALSE(built.empty());
  EXPECT_EQ(rows, (std::set<std::string>{built.begin(), built.end()}));
}

}  // namespace
