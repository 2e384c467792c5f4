// What lanes of a warp tell each other. Built at every level of optimisation, as each merges and copies calls in ways
// of its own; the kernels tell their blocks. What is expected was worked out by hand, from the source: lanes meet at
// the same call on the same path, in the same round of the same loops.
#include "runtime_test.hpp"

#include "warp_library.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>

namespace {

using namespace hipsim_test;

class Warp : public Runtime {};

constexpr int num_seeds = 8;

/// Runs a kernel of one full warp with either size and several seeds, in lock step too, and holds what each lane has
/// written against `expected(lane, warp size)`.
void expect_lanes(void (*kernel)(int*), const std::function<int(int, int)>& expected) {
  for (const int warp : {32, 64}) {
    for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
      hipsim::Config config;
      config.seed = seed;
      config.warp_size = warp;
      config.lockstep = seed % 2 == 1;
      EXPECT_TRUE(hipsim::configure(config));
      int* out = device_array<int>(64);
      hipLaunchKernelGGL(kernel, dim3(1), dim3(static_cast<std::uint32_t>(warp)), 0, nullptr, out);
      const std::vector<int> got = host_copy(out, static_cast<std::size_t>(warp));
      for (int i = 0; i < warp; ++i)
        ASSERT_EQ(got[static_cast<std::size_t>(i)], expected(i, warp))
            << "lane " << i << " of " << warp << ", seed " << seed;
      must(hipFree(out));
    }
  }
}

__device__ int num_here() { return __popcll(__ballot(1)); }
__device__ int count_of(int predicate) { return __popcll(__ballot(predicate)); }
__device__ int any_of(int predicate) { return __any(predicate); }
#define NUM_HERE() __popcll(__ballot(1))

/// For the pairs of branches below: lanes up to 20 in one, the others in the other.
int of_20(int lane, int warp) { return lane < 20 ? 20 : warp - 20; }

// ---- branches -------------------------------------------------------------------------------------------------------

__global__ void calls_a_helper_in_both_branches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 20)
    out[i] = count_of(1);
  else
    out[i] = count_of(1);
}
TEST_F(Warp, lanes_in_two_branches_that_call_one_helper_do_not_meet) {
  expect_lanes(calls_a_helper_in_both_branches, of_20);
}

__global__ void chooses_on_one_line(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  out[i] = i < 20 ? __popcll(__ballot(1)) : __popcll(__ballot(1));
}
TEST_F(Warp, the_two_arms_of_a_choice_on_one_line_do_not_meet) { expect_lanes(chooses_on_one_line, of_20); }

__global__ void asks_in_both_branches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 20)
    out[i] = any_of(i > 5);
  else
    out[i] = any_of(i < 0);
}
TEST_F(Warp, a_question_in_one_branch_is_not_answered_by_the_other) {
  expect_lanes(asks_in_both_branches, [](int lane, int) { return lane < 20 ? 1 : 0; });
}

__global__ void calls_a_library_in_both_branches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 20)
    out[i] = library_count(1);
  else
    out[i] = library_count(1);
}
TEST_F(Warp, a_wrapper_in_a_library_tells_its_callers_apart) { expect_lanes(calls_a_library_in_both_branches, of_20); }

__global__ void expands_a_macro_in_both_branches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  // clang-format off
  if (i < 20) out[i] = NUM_HERE(); else out[i] = NUM_HERE();
  // clang-format on
}
TEST_F(Warp, a_macro_in_two_branches_of_one_line_is_two_operations) {
  expect_lanes(expands_a_macro_in_both_branches, of_20);
}

__device__ int outer_helper(int i) { return i % 2 == 0 ? count_of(1) + 100 : count_of(1) + 200; }
__global__ void nests_helpers(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 20)
    out[i] = outer_helper(i);
  else
    out[i] = outer_helper(i);
}
TEST_F(Warp, helpers_in_helpers_are_told_apart_at_every_call) {
  expect_lanes(nests_helpers,
               [](int lane, int warp) { return (lane < 20 ? 10 : (warp - 20) / 2) + (lane % 2 == 0 ? 100 : 200); });
}

__global__ void calls_lambdas(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  const auto count = [](int predicate) { return __popcll(__ballot(predicate)); };
  out[i] = i < 20 ? count(1) : count(1);
}
TEST_F(Warp, a_lambda_called_in_two_branches_is_two_operations) { expect_lanes(calls_lambdas, of_20); }

__global__ void switches(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  switch (i % 8) {
    case 0:
      met = count_of(1);
      break;
    case 1:
    case 2:
      met = 10 + count_of(1);
      break;
    case 3:
      met = 20 + count_of(1);
      [[fallthrough]];
    case 4:
      met += 1000 * count_of(1);
      break;
    case 5:
      met = 30 + count_of(1);
      break;
    case 6:
      met = 40 + count_of(1);
      break;
    default:
      break;
  }
  out[i] = met + 100000 * count_of(1);
}
TEST_F(Warp, the_cases_of_a_switch_meet_apart_and_join_behind_it) {
  expect_lanes(switches, [](int lane, int warp) {
    const int eighth = warp / 8;
    const int cases[] = {eighth,
                         10 + 2 * eighth,
                         10 + 2 * eighth,
                         20 + eighth + 1000 * 2 * eighth,
                         1000 * 2 * eighth,
                         30 + eighth,
                         40 + eighth,
                         0};
    return cases[lane % 8] + 100000 * warp;
  });
}

__device__ int returns_early(int i) {
  if (i < 4) return 1000;
  const int met = count_of(1);
  if (i < 12) return met;
  return met + 100 * count_of(1);
}
__global__ void leaves_early(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  const int met = returns_early(i);
  out[i] = met;
  if (i >= 16) return;
  out[i] = met + 10000 * num_here();
}
TEST_F(Warp, lanes_that_return_early_are_not_waited_for_within_and_join_behind) {
  expect_lanes(leaves_early, [](int lane, int warp) {
    const int met = lane < 4 ? 1000 : lane < 12 ? warp - 4 : warp - 4 + 100 * (warp - 12);
    return lane < 16 ? met + 10000 * 16 : met;
  });
}

/// Drawn once. The kernel below was, too: it is what was left of the one that g++ 12 made two calls of one of, with
/// -freorder-blocks-and-partition, when all was taken away that it did not need for that.
constexpr int numbers[97] = {474, 627, 382, 273, 141, 190, 887, 692, 6,   346, 514, 474, 919, 619, 82,  342, 567,
                             958, 631, 716, 41,  745, 388, 173, 720, 968, 462, 974, 742, 432, 160, 172, 243, 52,
                             113, 135, 518, 892, 946, 604, 64,  792, 704, 392, 808, 764, 908, 104, 941, 298, 209,
                             690, 229, 743, 812, 431, 910, 89,  791, 273, 933, 214, 406, 287, 349, 828, 44,  204,
                             725, 907, 5,   900, 421, 56,  917, 387, 866, 503, 142, 24,  242, 434, 753, 928, 871,
                             114, 987, 611, 3,   124, 782, 592, 202, 916, 872, 207, 338};
int number(const int* list, int at) { return list[static_cast<unsigned int>(at) % 97U]; }
__device__ unsigned int append(unsigned int met, int count) { return met * 31U + static_cast<unsigned int>(count); }

__device__ unsigned int counts_six_times(unsigned int met, int lane, int rounds, const int* list) {
  for (int i = 0, length = 3 + number(list, lane * 49 + rounds) % 1; i < length; ++i) {
    ++rounds;
    met = append(met, __popcll(__ballot(1)));
    met = append(met, __popcll(__ballot(1)));
  }
  return met;
}
__device__ unsigned int joins_before_a_call(unsigned int met, int lane, int rounds, const int* list) {
  if (number(list, lane * 21 + rounds * 32 + 44) % 4 == 0) {
    if (number(list, lane * 6 + rounds * 18 + 59) % 3 == 0) {
      met = append(met, __popcll(__ballot(1)));
    } else {
      if (number(list, lane * 56 + rounds * 47 + 65) % 3 == 0) {
        for (int i = 0, length = 2 + number(list, lane + rounds) % 3; i < length; ++i) ++rounds;
      } else {
        for (int i = 0, length = 2 + number(list, lane * 23 + rounds) % 2; i < length; ++i) {
          ++rounds;
          met = append(met, __popcll(__ballot(1)));
        }
      }
      met = counts_six_times(met, lane, rounds, list);
    }
  } else {
    met = counts_six_times(met, lane, rounds, list);
  }
  return append(met, __popcll(__ballot(1)));
}
__global__ void joins(unsigned int* out, const int* list) {
  out[threadIdx.x] = joins_before_a_call(1, static_cast<int>(threadIdx.x), 0, list);
}

/// Where a lane goes in that kernel.
enum class Way : std::uint8_t { outside, alone, looping, past_loop };
Way way_of(int lane) {
  if (number(numbers, lane * 21 + 44) % 4 != 0) return Way::outside;
  if (number(numbers, lane * 6 + 59) % 3 == 0) return Way::alone;
  return number(numbers, lane * 56 + 65) % 3 == 0 ? Way::past_loop : Way::looping;
}

TEST_F(Warp, lanes_from_two_branches_join_in_the_call_behind_them) {
  int on_way[4] = {};
  int in_third_round = 0;
  for (int lane = 0; lane < 64; ++lane) {
    ++on_way[static_cast<int>(way_of(lane))];
    in_third_round += way_of(lane) == Way::looping && number(numbers, lane * 23) % 2 == 1 ? 1 : 0;
  }
  const auto num_on = [&](Way way) { return on_way[static_cast<int>(way)]; };
  int* list = device_copy(std::vector<int>(numbers, numbers + 97));
  unsigned int* out = device_array<unsigned int>(64);
  hipLaunchKernelGGL(joins, dim3(1), dim3(64), 0, nullptr, out, list);
  const std::vector<unsigned int> got = host_copy(out, 64);
  for (int lane = 0; lane < 64; ++lane) {
    const Way way = way_of(lane);
    unsigned int want = 1;
    if (way == Way::alone) want = append(want, num_on(Way::alone));
    if (way == Way::looping) want = append(append(want, num_on(Way::looping)), num_on(Way::looping));
    if (way == Way::looping && number(numbers, lane * 23) % 2 == 1) want = append(want, in_third_round);
    const int in_call = way == Way::outside ? num_on(Way::outside) : num_on(Way::looping) + num_on(Way::past_loop);
    for (int i = 0; i < 6 && way != Way::alone; ++i) want = append(want, in_call);
    EXPECT_EQ(got[static_cast<std::size_t>(lane)], append(want, 64)) << "lane " << lane;
  }
  must(hipFree(list));
  must(hipFree(out));
}

// ---- loops ----------------------------------------------------------------------------------------------------------

__global__ void continues(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int round = 0; round < 3; ++round) {
    if (i < 4 && round == 1) continue;
    met = met * 100 + num_here();
  }
  out[i] = met;
}
TEST_F(Warp, lanes_that_continue_are_waited_for_in_the_next_round) {
  expect_lanes(continues,
               [](int lane, int warp) { return lane < 4 ? warp * 100 + warp : (warp * 100 + warp - 4) * 100 + warp; });
}

/// Each lane comes to the operation once, and some in another round.
__global__ void comes_in_different_rounds(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int round = 0; round < 2; ++round) {
    if (i < 20 ? round == 0 : round == 1) continue;
    met += count_of(1);
  }
  out[i] = met;
}
TEST_F(Warp, lanes_that_come_once_but_in_different_rounds_do_not_meet) {
  expect_lanes(comes_in_different_rounds, of_20);
}

__global__ void loops_so_often(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int round = 0; round < i % 4; ++round) met = met * 100 + num_here();
  out[i] = met;
}
TEST_F(Warp, loops_of_different_lengths_meet_round_by_round) {
  expect_lanes(loops_so_often, [](int lane, int warp) {
    const int quarter = warp / 4;
    const int by_length[] = {0, 3 * quarter, 3 * quarter * 100 + 2 * quarter,
                             (3 * quarter * 100 + 2 * quarter) * 100 + quarter};
    return by_length[lane % 4];
  });
}

/// Lanes of the lower half: one inner round, then three; of the upper: three, then one.
__global__ void loops_in_loops(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int outer = 0; outer < 2; ++outer) {
    const int length = (i < 20) == (outer == 0) ? 1 : 3;
    for (int inner = 0; inner < length; ++inner) met = met * 100 + num_here();
  }
  out[i] = met;
}
TEST_F(Warp, nested_loops_of_different_lengths_meet_in_the_same_rounds_of_both) {
  // Outer round 0: all, then the upper lanes twice. Outer round 1: all, then the lower lanes twice.
  expect_lanes(loops_in_loops, [](int lane, int warp) {
    const int lower = ((warp * 100 + warp) * 100 + 20) * 100 + 20;
    const int upper = ((warp * 100 + warp - 20) * 100 + warp - 20) * 100 + warp;
    return lane < 20 ? lower : upper;
  });
}

/// The same, with the loops in functions and the operation in a third.
__device__ int inner_loop(int length, int met) {
  for (int inner = 0; inner < length; ++inner) met = met * 100 + count_of(1);
  return met;
}
__global__ void loops_in_functions(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int outer = 0; outer < 2; ++outer) met = inner_loop((i < 20) == (outer == 0) ? 1 : 3, met);
  out[i] = met;
}
TEST_F(Warp, nested_loops_in_functions_meet_in_the_same_rounds_too) {
  expect_lanes(loops_in_functions, [](int lane, int warp) {
    const int lower = ((warp * 100 + warp) * 100 + 20) * 100 + 20;
    const int upper = ((warp * 100 + warp - 20) * 100 + warp - 20) * 100 + warp;
    return lane < 20 ? lower : upper;
  });
}

__global__ void breaks(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int round = 0;; ++round) {
    if (round == i % 4) break;
    met += num_here();
    if (round == 1 && i % 4 == 3) break;
  }
  out[i] = met + 1000 * num_here();
}
TEST_F(Warp, lanes_that_break_out_of_a_loop_join_behind_it) {
  // In round 0 there are the lanes with 1, 2 and 3, in round 1 those with 2 and 3, and then nobody.
  expect_lanes(breaks, [](int lane, int warp) {
    const int quarter = warp / 4;
    const int by_lane[] = {0, 3 * quarter, 5 * quarter, 5 * quarter};
    return by_lane[lane % 4] + 1000 * warp;
  });
}

/// Two loops after each other, of different lengths, within one: the rounds of the first are over in the second.
__global__ void loops_one_after_the_other(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int outer = 0; outer < 2; ++outer) {
    for (int first = 0; first < i % 2 + 1; ++first) met += any_of(0);
    for (int second = 0; second < 2 - i % 2; ++second) met = met * 100 + num_here();
  }
  out[i] = met;
}
TEST_F(Warp, the_rounds_of_a_loop_that_is_over_do_not_count) {
  expect_lanes(loops_one_after_the_other, [](int lane, int warp) {
    return lane % 2 == 1 ? warp * 100 + warp : ((warp * 100 + warp / 2) * 100 + warp) * 100 + warp / 2;
  });
}

volatile int always = 1;
/// A block in the loop that a lane comes to for the first time in a late round: others were there in an earlier one.
__global__ void comes_late_in_a_loop(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int met = 0;
  for (int round = 0; round < 5; ++round) {
    if (round < i % 4) continue;
    met += count_of(1);
    if (always != 0) break;
  }
  out[i] = met;
}
TEST_F(Warp, a_block_that_every_lane_leaves_the_loop_from_is_still_in_the_loop) {
  expect_lanes(comes_late_in_a_loop, [](int, int warp) { return warp / 4; });
}

__global__ void loops_while(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int left = i % 5;
  int rounds = 0;
  while (any_of(left > 0)) {
    if (left > 0) --left;
    ++rounds;
  }
  do rounds += 10;
  while (count_of(rounds < 10 * (i % 3 + 1)) > 0 && rounds < 10 * (i % 3 + 1));
  out[i] = rounds;
}
TEST_F(Warp, conditions_of_loops_are_asked_together) {
  // Four rounds for all. Then a lane leaves once it is past 10, 20 or 30.
  expect_lanes(loops_while, [](int lane, int) { return 4 + 10 * (lane % 3 + 1); });
}

// ---- recursion ------------------------------------------------------------------------------------------------------

__device__ int recurse(int depth) {
  if (depth == 0) return count_of(1);
  const int below = recurse(depth - 1);
  return below * 100 + count_of(1);
}
__global__ void recurses(int* out) { out[threadIdx.x] = recurse(static_cast<int>(threadIdx.x) % 3); }
TEST_F(Warp, lanes_at_different_depths_of_a_recursion_do_not_meet) {
  // At the bottom those of one depth meet; on the way up those of depth 2 alone, and in the first call those of 1
  // and 2.
  expect_lanes(recurses, [](int lane, int warp) {
    const int num_of_depth[] = {(warp + 2) / 3, (warp + 1) / 3, warp / 3};
    const int here = num_of_depth[lane % 3];
    const int last = num_of_depth[1] + num_of_depth[2];
    const int by_depth[] = {here, here * 100 + last, (here * 100 + here) * 100 + last};
    return by_depth[lane % 3];
  });
}

// ---- lanes ----------------------------------------------------------------------------------------------------------

struct Lanes {
  int lane;
  int shuffled;
  int up;
  int down;
  int across;
  int width_8;
  unsigned long long ballot;
  int any_of_last;
  int all_below_40;
};

__global__ void tell_each_other(Lanes* out) {
  const int value = static_cast<int>(threadIdx.x) * 10;
  Lanes lanes{};
  lanes.lane = __lane_id();
  lanes.shuffled = __shfl(value, 5);
  lanes.up = __shfl_up(value, 2);
  lanes.down = __shfl_down(value, 2);
  lanes.across = __shfl_xor(value, 1);
  lanes.width_8 = __shfl(value, 9, 8);
  lanes.ballot = __ballot(threadIdx.x % 3 == 0);
  lanes.any_of_last = __any(threadIdx.x == blockDim.x - 1);
  lanes.all_below_40 = __all(threadIdx.x < 40);
  out[threadIdx.x] = lanes;
}

void expect_told(const std::vector<Lanes>& lanes, int warp) {
  const int count = static_cast<int>(lanes.size());
  for (int i = 0; i < count; ++i) {
    const Lanes& got = lanes[static_cast<std::size_t>(i)];
    const int first = i / warp * warp;
    const int lane = i - first;
    const int end = std::min(first + warp, count);
    unsigned long long ballot = 0;
    for (int j = first; j < end; ++j) ballot |= j % 3 == 0 ? 1ull << (j - first) : 0;
    ASSERT_EQ(got.lane, lane);
    ASSERT_EQ(got.shuffled, (first + 5) * 10);
    ASSERT_EQ(got.up, (lane >= 2 ? i - 2 : i) * 10);
    ASSERT_EQ(got.down, (lane + 2 < warp ? i + 2 : i) * 10);
    ASSERT_EQ(got.across, (i ^ 1) * 10);
    ASSERT_EQ(got.width_8, (i / 8 * 8 + 1) * 10);
    ASSERT_EQ(got.ballot, ballot);
    ASSERT_EQ(got.any_of_last, end == count ? 1 : 0);
    ASSERT_EQ(got.all_below_40, end <= 40 ? 1 : 0);
  }
}

TEST_F(Warp, lanes_tell_each_other_with_32_and_with_64_under_every_seed) {
  for (const int warp : {32, 64}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      configure(seed, hipsim::Mode::lazy, warp);
      Lanes* out = device_array<Lanes>(256);
      hipLaunchKernelGGL(tell_each_other, dim3(1), dim3(256), 0, nullptr, out);
      expect_told(host_copy(out, 256), warp);
      must(hipFree(out));
    }
  }
}

__global__ void ballot_all(unsigned long long* out) { out[threadIdx.x] = __ballot(1); }

TEST_F(Warp, a_warp_that_is_not_full_has_fewer_lanes) {
  unsigned long long* out = device_array<unsigned long long>(70);
  hipLaunchKernelGGL(ballot_all, dim3(1), dim3(70), 0, nullptr, out);
  const std::vector<unsigned long long> ballots = host_copy(out, 70);
  EXPECT_EQ(ballots[0], ~0ull);
  EXPECT_EQ(ballots[64], 0x3full);
  EXPECT_EQ(ballots[69], 0x3full);
}

__global__ void vote_in_branches(unsigned long long* out, int* all) {
  if (threadIdx.x >= 48) return;
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __ballot(1);
    all[threadIdx.x] = __all(threadIdx.x % 2 == 0);
  } else {
    out[threadIdx.x] = __ballot(threadIdx.x < 8);
    all[threadIdx.x] = __all(threadIdx.x < 8);
  }
}

TEST_F(Warp, only_the_lanes_of_a_branch_meet) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    configure(seed);
    unsigned long long* out = device_array<unsigned long long>(64);
    int* all = device_array<int>(64);
    hipLaunchKernelGGL(vote_in_branches, dim3(1), dim3(64), 0, nullptr, out, all);
    const std::vector<unsigned long long> ballots = host_copy(out, 48);
    const std::vector<int> alls = host_copy(all, 48);
    for (std::size_t i = 0; i < 48; ++i) {
      EXPECT_EQ(ballots[i], i % 2 == 0 ? 0x555555555555ull : 0xaaull) << "lane " << i << ", seed " << seed;
      EXPECT_EQ(alls[i], i % 2 == 0 ? 1 : 0) << "lane " << i << ", seed " << seed;
    }
  }
}

/// How many lanes met, in each of three places.
struct Met {
  int inside = 0;
  int behind = 0;
  int at_end = 0;
  bool operator==(const Met&) const = default;
};

__global__ void meet_behind_a_branch(Met* out) {
  const int lane = __lane_id();
  Met met;
  if (lane < 16) met.inside = __popcll(__ballot(1));
  met.behind = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

__global__ void meet_behind_a_loop(Met* out) {
  const int lane = __lane_id();
  Met met;
  for (int i = 0; i < lane / 16; ++i) met.inside += __popcll(__ballot(1));
  met.behind = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

__global__ void meet_in_both_branches(Met* out) {
  const int lane = __lane_id();
  Met met;
  if (lane % 4 == 0) {
    met.inside = __popcll(__ballot(1));
  } else {
    met.inside = __popcll(__ballot(1));
    if (lane % 4 == 1) met.inside += 100 * __popcll(__ballot(1));
    met.behind = __popcll(__ballot(1));
  }
  met.at_end = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

/// Some go on and others stay in the loop, round by round.
__global__ void meet_in_a_loop_with_branches(Met* out) {
  const int lane = __lane_id();
  Met met;
  for (int i = 0; i < 4; ++i) {
    if (lane % 4 > i) met.inside += __popcll(__ballot(1));
    met.behind += __popcll(__ballot(1));
    if (lane / 16 == i) break;
  }
  met.at_end = __popcll(__ballot(1));
  out[threadIdx.x] = met;
}

/// What lane `lane` of a full warp sees.
template <class Expected>
void expect_met(void (*kernel)(Met*), Expected expected) {
  for (const int warp : {32, 64}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      configure(seed, hipsim::Mode::lazy, warp);
      Met* out = device_array<Met>(128);
      hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, nullptr, out);
      const std::vector<Met> met = host_copy(out, 128);
      for (int i = 0; i < 128; ++i) {
        const Met& got = met[static_cast<std::size_t>(i)];
        const Met want = expected(i % warp, warp);
        EXPECT_EQ(got, want) << "thread " << i << ", warps of " << warp << ", seed " << seed << ": " << got.inside
                             << ", " << got.behind << ", " << got.at_end;
      }
      must(hipFree(out));
    }
  }
}

TEST_F(Warp, is_together_again_behind_a_branch) {
  expect_met(meet_behind_a_branch, [](int lane, int warp) { return Met{lane < 16 ? 16 : 0, warp, 0}; });
}

TEST_F(Warp, is_together_again_behind_a_loop) {
  expect_met(meet_behind_a_loop, [](int lane, int warp) {
    Met met{0, warp, 0};
    for (int i = 0; i < lane / 16; ++i) met.inside += warp - 16 * (i + 1);
    return met;
  });
}

TEST_F(Warp, is_together_again_behind_two_branches) {
  expect_met(meet_in_both_branches, [](int lane, int warp) {
    if (lane % 4 == 0) return Met{warp / 4, 0, warp};
    return Met{warp * 3 / 4 + (lane % 4 == 1 ? 100 * warp / 4 : 0), warp * 3 / 4, warp};
  });
}

TEST_F(Warp, lanes_that_leave_a_loop_wait_for_the_others) {
  expect_met(meet_in_a_loop_with_branches, [](int lane, int warp) {
    Met met{0, 0, warp};
    for (int i = 0; i <= lane / 16; ++i) {
      const int there = warp - 16 * i;  // the others have left
      if (lane % 4 > i) met.inside += there * (3 - i) / 4;
      met.behind += there;
    }
    return met;
  });
}

__global__ void sum_by_shuffles(const int* values, int* out) {
  __shared__ int sums[32];
  int sum = values[threadIdx.x];
  for (int step = warpSize / 2; step > 0; step /= 2) sum += __shfl_down(sum, static_cast<unsigned int>(step));
  if (__lane_id() == 0) sums[static_cast<int>(threadIdx.x) / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int total = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / warpSize; ++warp) total += sums[warp];
  *out = total;
}

TEST_F(Warp, a_reduction_is_right_with_32_and_with_64) {
  int* values = device_copy(std::vector<int>(512, 2));
  int* out = device_array<int>(1);
  for (const int warp : {32, 64}) {
    configure(5, hipsim::Mode::lazy, warp);
    hipLaunchKernelGGL(sum_by_shuffles, dim3(1), dim3(512), 0, nullptr, values, out);
    EXPECT_EQ(host_copy(out, 1)[0], 1024);
  }
}

/// A kernel that takes 64 lanes for granted is right on one card and wrong on the next.
__global__ void count_lanes_up_to_64(int* out) { out[threadIdx.x] = __popcll(__ballot(1)) == 64; }

TEST_F(Warp, a_kernel_that_takes_64_lanes_for_granted_is_wrong_with_32) {
  for (const int warp : {32, 64}) {
    configure(0, hipsim::Mode::lazy, warp);
    int* out = device_array<int>(64);
    hipLaunchKernelGGL(count_lanes_up_to_64, dim3(1), dim3(64), 0, nullptr, out);
    EXPECT_EQ(host_copy(out, 64), std::vector<int>(64, warp == 64 ? 1 : 0));
  }
}

__global__ void shuffle_other_types(std::uint64_t* wide, double* real, signed char* narrow) {
  wide[threadIdx.x] = __shfl(0x123456789abcdefull + threadIdx.x, 1);
  real[threadIdx.x] = __shfl_xor(0.5 + threadIdx.x, 1);
  narrow[threadIdx.x] = __shfl_up(static_cast<signed char>(-2 - static_cast<int>(threadIdx.x)), 1);
}

TEST_F(Warp, shuffles_carry_every_width) {
  std::uint64_t* wide = device_array<std::uint64_t>(2);
  double* real = device_array<double>(2);
  signed char* narrow = device_array<signed char>(2);
  hipLaunchKernelGGL(shuffle_other_types, dim3(1), dim3(2), 0, nullptr, wide, real, narrow);
  EXPECT_EQ(host_copy(wide, 2), std::vector<std::uint64_t>(2, 0x123456789abcdf0ull));
  EXPECT_EQ(host_copy(real, 2), (std::vector<double>{1.5, 0.5}));
  EXPECT_EQ(host_copy(narrow, 2), (std::vector<signed char>{-2, -2}));
}

}  // namespace
