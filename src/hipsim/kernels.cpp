#include "runtime.hpp"

#include "fibers.hpp"
#include "gpu_strands.hpp"
#include "paths.hpp"
#include "traps.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

namespace hipsim {

// The thread that runs now, and the block it belongs to.
detail::Current detail::current{};
uint3 detail::block_idx{};
dim3 detail::block_dim;
dim3 detail::grid_dim;
int detail::warp_size = 64;
detail::ThreadCursor detail::cursor;

namespace {

constexpr std::uint32_t max_threads = 1024;
/// Strands that the GPU threads of an operation's strand run as, and those of all. ThreadSanitizer keeps 255 strands
/// apart, and finds next to nothing when there are more: three streams with all they may have leave room for some 60
/// others.
constexpr std::uint32_t max_pool = 64;
constexpr std::size_t max_pooled = 3 * max_pool;
/// Blocks of a launch that have strands of their own, where there are not enough for all. Not more, for the fewer
/// strands a block has, the more of its threads share one.
constexpr std::uint32_t max_blocks_apart = 4;
/// A strand remembers more with each use, and leaves something behind for good when it ends. With this many uses it is
/// about 5 bytes a thread, and 300 with one.
constexpr unsigned max_uses = 256;
/// Threads of a launch: AMD's dispatch counts them in 32 bits.
constexpr std::uint64_t max_grid_threads = 0xffffffff;

/// Where a thread that has ended stands, and where threads stand that do not stand together.
constexpr Place ended{nullptr, 0};
constexpr Place nowhere{nullptr, -1};

/// What a thread brings to its warp, and takes from it.
struct Thread {
  Place place;  ///< of the operation; or of the barrier, when it is not the others'
  std::uint64_t value = 0;
  int source_lane = 0;
  detail::Met met;
  paths::Trace trace;  ///< in block `traced_block`
  std::uint64_t traced_block = 0;
  paths::Path path;      ///< to the operation
  bool is_step = false;  ///< it waits for its turn alone, and not to exchange something
  watch::Strand strand = nullptr;
};

using fibers::Fiber;
using Fibers = std::vector<Fiber*>;

/// ThreadSanitizer's handles of a block's barriers. Two take turns: nobody reaches the next but one before all have
/// left the one before. New for each block, so that blocks are not ordered by them.
struct Barriers {
  char order[2]{};
};

/// Those of its warps, for lanes in lock step: new for each block, too.
using WarpOrders = std::vector<std::uint64_t>;

/// Those of a launch. New for each launch, so that launches are ordered by nothing but what orders their operations.
struct Ends {
  char start = 0;
  char end = 0;
};

struct PooledStrand {
  watch::Strand strand = nullptr;
  unsigned num_uses = 0;
};

/// What GPU threads of an operation's strand run as, in turn: the next launch has the same again. It is behind this one
/// anyhow, as all operations of one strand are.
///
/// Threads that share one are not told apart, and of two blocks with the same ones the second counts as ordered after
/// the first. Which do is drawn anew for each launch: a race that one launch hides the next one shows.
struct StrandPool {
  watch::Strand owner = nullptr;
  std::vector<PooledStrand> strands = std::vector<PooledStrand>(max_pool);
  std::size_t num_made = 0;
};

/// All of them, the last one used last.
struct StrandPools {
  std::vector<std::unique_ptr<StrandPool>> list;

  StrandPool& use(watch::Strand owner) {
    auto found = std::find_if(list.begin(), list.end(), [=](const auto& pool) { return pool->owner == owner; });
    if (found == list.end()) {
      list.push_back(std::make_unique<StrandPool>());
      list.back()->owner = owner;
    } else {
      std::rotate(found, found + 1, list.end());
    }
    std::size_t num_made = 0;
    for (const auto& pool : list) num_made += pool->num_made;
    // This one may grow by as many as it can have.
    while (list.size() > 1 && num_made + max_pool - list.back()->num_made > max_pooled) {
      num_made -= list.front()->num_made;
      end(*list.front());
      list.erase(list.begin());
    }
    return *list.back();
  }
  void forget(watch::Strand owner) {
    std::erase_if(list, [=](const auto& pool) {
      if (pool->owner != owner) return false;
      end(*pool);
      return true;
    });
  }
  static void end(StrandPool& pool) {
    for (const PooledStrand& pooled : pool.strands) watch::end_strand(pooled.strand);
  }
};

/// A call in progress, as its caller left it: the address it returns to, and the caller's frame.
struct Call {
  paths::Address returns_to;
  void* const* frame;
};

/// A warp in one block.
struct Warp {
  std::vector<Fibers> groups;  ///< its lanes that wait, those on one path together; scratch of complete_warp_ops
  /// By the calls and loops of a path: the rounds in which lanes have met there last.
  std::map<std::vector<std::uint64_t>, std::vector<std::uint64_t>> met;
};

/// Why a block is given up.
struct Failure {
  Report::Kind kind{};
  std::string text;
  const void* code = nullptr;  ///< where, when the text does not say it
};

/// Memory for HIP_DYNAMIC_SHARED, of exactly the size asked for.
struct DynamicShared {
  void* memory = nullptr;
  std::size_t size = 0;
  ~DynamicShared() { release(); }
  void release() {
    watch::forget(memory, size);
    std::free(std::exchange(memory, nullptr));
    size = 0;
  }
};

/// What all blocks of a launch share, and the block that runs.
///
/// Threads of a block run in rounds: each until it stops, at a barrier or to meet its warp, or ends. When all threads
/// of a block stop at one barrier, as they should, a round is a walk along `order` and nothing else. Only when a thread
/// does something else than those before it are they put in lists.
struct Grid {
  const KernelLaunch* launch = nullptr;
  std::uint32_t num_threads = 0;
  std::vector<std::uint32_t> start_order;
  std::vector<Thread> threads;  ///< by linear index
  std::vector<Fiber> workers;   ///< what threads run on; none in the middle of one between blocks
  Fibers order;                 ///< of this round; empty while one worker runs all threads
  Fibers at_barrier;            ///< in the order they came, while there is no meeting
  Place barrier;                ///< of the first of them
  Fibers elsewhere;             ///< those of them that wait at another barrier
  Fibers in_warp_op;            ///< in the order they came, but for those that were left waiting
  std::vector<Warp> warps;
  std::uint64_t num_blocks = 0;  ///< that have begun, of all launches
  std::uint64_t steps_left = 0;  ///< of the block
  Failure failure;
  Fiber** scheduler = nullptr;  ///< goes on when the block has ended
  bool has_failed = false;
  bool is_watched = false;  ///< by a sanitizer
  bool is_line = true;      ///< y and z are 0 for all threads
  DynamicShared shared;
  // For ThreadSanitizer.
  watch::Strand strand = nullptr;  ///< of the operation
  watch::Strand host = nullptr;    ///< whoever schedules threads is the host, so that its lists are nobody else's
  std::unique_ptr<Ends> ends;
  std::unique_ptr<Barriers> barriers;
  std::unique_ptr<WarpOrders> warp_orders;  ///< null when lanes are not in lock step
  std::size_t generation = 0;
  StrandPools pools;
  StrandPool* pool = nullptr;            ///< of the operation
  std::vector<std::uint32_t> strand_of;  ///< by linear index: which of its block's strands a thread runs as
  std::uint32_t strands_of_block = 0;    ///< how many a block has
  std::uint32_t first_of_block = 0;      ///< in the pool, of the block that runs
};

/// Never destroyed: the stacks in it are nobody's leak, and objects that are destroyed late may still run kernels.
union Immortal {
  Grid grid;
  Immortal() : grid() {}
  ~Immortal() {}
};
Immortal immortal;
Grid& grid = immortal.grid;

/// `place` is where all threads meet that have stopped in this round.
fibers::Walk& walk = fibers::hipsim_walk;

std::uint32_t linear_index() { return grid.is_line ? detail::current.idx.x : detail::current.linear; }

detail::Current thread_of(std::uint32_t linear) {
  if (grid.is_line) return {{linear, 0, 0}, linear};
  const dim3& dim = detail::block_dim;
  return {{linear % dim.x, linear / dim.x % dim.y, linear / dim.x / dim.y}, linear};
}

std::string text_of_index(const uint3& at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

bool is_same(const Place& a, const Place& b) {
  if (a.line != b.line) return false;
  return a.file == b.file || (a.file != nullptr && b.file != nullptr && std::strcmp(a.file, b.file) == 0);
}

/// "0 to 31, 40"
std::string text_of_threads(const std::vector<std::uint32_t>& ascending) {
  std::string text;
  for (std::size_t first = 0; first < ascending.size(); ++first) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ascending[first]);
    if (last > first) text += " to " + std::to_string(ascending[last]);
    first = last;
  }
  return text;
}

/// The threads whose place this is.
std::string list_threads(const std::vector<Place>& place_of, const Place& place) {
  std::vector<std::uint32_t> threads;
  for (std::uint32_t thread = 0; thread < place_of.size(); ++thread)
    if (is_same(place_of[thread], place)) threads.push_back(thread);
  return text_of_threads(threads);
}

std::string list_threads(const Fibers& fibers) {
  std::vector<std::uint32_t> threads;
  for (const Fiber* fiber : fibers) threads.push_back(fiber->thread.linear);
  std::sort(threads.begin(), threads.end());
  return "threads " + text_of_threads(threads);
}

std::string text_of_block() {
  return std::string{"kernel "} + grid.launch->name + " (launched at " + text_of(grid.launch->place) + "), block " +
         text_of_index(detail::block_idx);
}

/// The block is given up; to be followed by a way to the scheduler.
bool fail(Report::Kind kind, const std::string& what, const void* code = nullptr) {
  traps::is_gpu_thread = false;
  grid.has_failed = true;
  grid.failure = {kind, text_of_block() + ": " + what, code};
  return false;
}

/// Takes steps off those that the block may pass; false when it has passed too many.
bool count_steps(std::uint64_t count, const void* code = nullptr) {
  if (grid.steps_left > count) {
    grid.steps_left -= count;
    return true;
  }
  const bool has_place = code == nullptr && walk.place.file != nullptr;
  return fail(Report::endless_kernel,
              "the block has passed " + std::to_string(runtime().config.max_steps) + " points and not ended; thread " +
                  std::to_string(linear_index()) + " was the last to run" +
                  (has_place ? ", at " + text_of(walk.place) : std::string{}),
              code);
}

/// Threads of the block wait at barriers, and not all at the same.
void report_barriers() {
  std::vector<Place> place_of(grid.num_threads, ended);
  for (const Fiber* fiber : grid.at_barrier) place_of[fiber->thread.linear] = grid.barrier;
  for (const Fiber* fiber : grid.elsewhere) place_of[fiber->thread.linear] = grid.threads[fiber->thread.linear].place;
  std::vector<Place> places;
  for (const Place& place : place_of) {
    const auto is_known = [&](const Place& known) { return is_same(known, place); };
    if (!is_same(place, ended) && std::none_of(places.begin(), places.end(), is_known)) places.push_back(place);
  }
  std::string text = text_of_block() + ": ";
  for (const Place& place : places) {
    const bool is_first = &place == places.data();
    text += (is_first ? "threads " : ", threads ") + list_threads(place_of, place) +
            (is_first ? " wait at the barrier at " : " at the one at ") + text_of(place);
  }
  if (grid.at_barrier.size() != grid.num_threads)
    text += ", threads " + list_threads(place_of, ended) + " have ended without " + (places.size() > 1 ? "one" : "it");
  report(Report::barrier_not_reached, text);
}

/// The barrier falls when all threads of the block stand at it; false when they cannot.
bool open_barrier() {
  if (grid.at_barrier.size() != grid.num_threads || !grid.elsewhere.empty()) {
    report_barriers();
    return false;
  }
  std::swap(grid.order, grid.at_barrier);
  ++grid.generation;
  return true;
}

/// The lanes of a warp that wait at one place exchange what they brought.
void complete_warp_op(const Fibers& lanes) {
  const auto warp_size = static_cast<std::uint32_t>(detail::warp_size);
  detail::Met met;
  for (const Fiber* fiber : lanes) {
    const std::uint64_t bit = std::uint64_t{1} << (fiber->thread.linear % warp_size);
    met.active |= bit;
    if (grid.threads[fiber->thread.linear].value != 0) met.ballot |= bit;
  }
  const std::uint32_t first = lanes[0]->thread.linear / warp_size * warp_size;
  for (Fiber* fiber : lanes) {
    Thread& thread = grid.threads[fiber->thread.linear];
    const int source = thread.source_lane;
    const bool is_there = source >= 0 && source < detail::warp_size && (met.active >> source & 1) != 0;
    // What a lane that is not there says is anybody's guess on a card: here it changes with the seed.
    met.value = is_there ? grid.threads[first + static_cast<std::uint32_t>(source)].value : runtime().random.next();
    thread.met = met;
    grid.order.push_back(fiber);
  }
}

// ---- which lanes meet -----------------------------------------------------------------------------------------------

Thread& thread_on(const Fiber* fiber) { return grid.threads[fiber->thread.linear]; }

Warp& warp_of(const Fiber* fiber) {
  return grid.warps[fiber->thread.linear / static_cast<std::uint32_t>(detail::warp_size)];
}

/// Puts a lane that waits to those of its warp that are on the same path.
void add_to_group(Fiber* fiber) {
  std::vector<Fibers>& groups = warp_of(fiber).groups;
  const paths::Path& path = thread_on(fiber).path;
  const auto is_there = [&](const Fibers& group) { return thread_on(group[0]).path.words == path.words; };
  const auto found = std::find_if(groups.begin(), groups.end(), is_there);
  (found != groups.end() ? *found : groups.emplace_back()).push_back(fiber);
}

/// The group that none of the others can still come to; null when that cannot be told.
const Fibers* choose_group(const std::vector<Fibers>& groups) {
  const Fibers* chosen = &groups[0];
  for (const Fibers& group : groups) {
    const Thread& one = thread_on(group[0]);
    const Thread& other = thread_on((*chosen)[0]);
    const paths::Order order = paths::compare(one.path, other.path);
    if (order == paths::Order::before) chosen = &group;
    if (order != paths::Order::unknown || one.is_step || other.is_step) continue;
    fail(Report::lanes_undecided, list_threads(*chosen) + " wait at the warp operation at " + text_of(other.place) +
                                      ", " + list_threads(group) + " at the one at " + text_of(one.place) +
                                      ", and who goes first cannot be told");
    return nullptr;
  }
  return chosen;
}

/// Writes down that the lanes meet; false when others of their warp have met there before, in this round or a later
/// one.
bool note_meeting(const Fibers& lanes) {
  const Thread& thread = thread_on(lanes[0]);
  std::vector<std::uint64_t> calls;
  std::vector<std::uint64_t> rounds;
  const std::vector<std::uint64_t>& words = thread.path.words;
  for (std::size_t at = 0; at < words.size();) {
    calls.insert(calls.end(), {words[at], words[at + 1]});
    const std::size_t end = at + 2 + 2 * words[at + 1];
    for (at += 2; at < end; at += 2) {
      calls.push_back(words[at]);
      rounds.push_back(words[at + 1]);
    }
  }
  const auto [met, is_first] = warp_of(lanes[0]).met.try_emplace(std::move(calls), rounds);
  if (is_first) return true;
  if (rounds <= met->second)
    return fail(Report::lanes_undecided, list_threads(lanes) + " come late to the warp operation at " +
                                             text_of(thread.place) +
                                             ": lanes of their warp have met there without them");
  met->second = std::move(rounds);
  return true;
}

/// Whether the lanes go on in this round: warps in lock step are not in step with each other.
bool may_go_on(const Fibers& lanes) {
  if (runtime().config.seed == 0 || !thread_on(lanes[0]).is_step) return true;
  return runtime().random.below(2) == 0;
}

/// The lanes go on; false when they came late.
bool release_lanes(const Fibers& lanes) {
  if (thread_on(lanes[0]).is_step)
    grid.order.insert(grid.order.end(), lanes.begin(), lanes.end());
  else if (note_meeting(lanes))
    complete_warp_op(lanes);
  else
    return false;
  return true;
}

/// Of each warp one group goes on; the others wait on. False when that cannot be told.
bool complete_warp_ops() {
  for (Fiber* fiber : grid.in_warp_op) add_to_group(fiber);
  grid.in_warp_op.clear();
  bool is_known = true;
  for (Warp& warp : grid.warps) {
    if (warp.groups.empty()) continue;
    const Fibers* chosen = is_known ? choose_group(warp.groups) : nullptr;
    is_known = chosen != nullptr;
    if (chosen != nullptr && !may_go_on(*chosen)) chosen = nullptr;
    for (const Fibers& group : warp.groups)
      if (&group != chosen) grid.in_warp_op.insert(grid.in_warp_op.end(), group.begin(), group.end());
    if (chosen != nullptr) is_known = release_lanes(*chosen);
    warp.groups.clear();
  }
  // By chance nobody may have gone on.
  return is_known && (!grid.order.empty() || complete_warp_ops());
}

// ---- who runs when --------------------------------------------------------------------------------------------------

void run_threads();
void rest();

void make_worker() {
  if (fibers::make(grid.workers.emplace_back(), run_threads, rest)) return;
  std::fprintf(stderr, "hipsim: no memory for the stack of a GPU thread\n");
  std::abort();
}

/// The first thread of a block that stops keeps the worker that has run all threads so far; those behind it get one
/// each.
void spread_out() {
  const std::uint32_t at = detail::cursor.is_plain ? linear_index() : detail::cursor.at;
  detail::cursor.next = at + 1;
  detail::cursor.end = 0;
  const std::uint32_t count = grid.num_threads - at;
  while (grid.workers.size() < count) make_worker();
  grid.order.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    grid.order[i] = &grid.workers[i];
    grid.workers[i].thread = thread_of(grid.start_order[at + i]);
  }
  walk.turn = grid.order.data();
  walk.last = walk.turn + count - 1;
  walk.place = nowhere;
}

/// The current thread does something else than those before it in this round.
void disperse() {
  if (walk.place.file != nullptr) {
    grid.barrier = walk.place;
    grid.at_barrier.assign(grid.order.data(), walk.turn);
  }
  walk.place = nowhere;
}

void add_to_barrier(Fiber* fiber, const Place& place) {
  if (grid.at_barrier.empty()) {
    grid.barrier = place;
  } else if (!is_same(place, grid.barrier)) {
    grid.threads[fiber->thread.linear].place = place;
    grid.elsewhere.push_back(fiber);
  }
  grid.at_barrier.push_back(fiber);
}

/// Lets threads go on once nobody can run; false when all have ended, or never will.
bool begin_round() {
  if (is_same(walk.place, ended)) return false;
  if (walk.place.file != nullptr) {
    ++grid.generation;
  } else {
    grid.order.clear();
    if (!grid.in_warp_op.empty()) {
      if (!complete_warp_ops()) return false;
    } else if (grid.at_barrier.empty()) {
      return false;
    } else if (!open_barrier()) {
      grid.has_failed = true;
      return false;
    }
  }
  if (!count_steps(grid.order.size())) return false;
  if (runtime().config.seed != 0) shuffle(grid.order, runtime().random);
  walk.last = grid.order.data() + grid.order.size() - 1;
  return true;
}

/// The current thread has stopped, and is where it belongs.
Fiber* go_on() {
  Fiber** const next = walk.turn != walk.last ? walk.turn + 1 : begin_round() ? grid.order.data() : grid.scheduler;
  traps::is_gpu_thread = next != grid.scheduler;
  return fibers::go_on_with(next);
}

/// At a barrier, or at its end.
Fiber* arrive(Place place) {
  traps::is_gpu_thread = false;
  if (grid.order.empty()) {
    if (is_same(place, ended)) return fibers::go_on_with(grid.scheduler);
    spread_out();
  }
  const bool all_run = grid.order.size() == grid.num_threads;
  if (all_run && walk.turn == grid.order.data()) {
    walk.place = place;
  } else if (!is_same(place, walk.place)) {
    disperse();
    if (!is_same(place, ended)) add_to_barrier(*walk.turn, place);
  }
  return go_on();
}

Fiber* arrive_at_warp_op(Place place) {
  traps::is_gpu_thread = false;
  if (grid.order.empty()) spread_out();
  disperse();
  grid.threads[linear_index()].place = place;
  grid.in_warp_op.push_back(*walk.turn);
  return go_on();
}

/// A worker's work: the threads of a block up to the first that stops, or one thread.
void run_threads() {
  // Where the frame of what is called next is, too: this one is left before.
  (*walk.turn)->base = static_cast<void* const*>(__builtin_frame_address(0));
  traps::is_gpu_thread = true;
  grid.launch->work.run(grid.launch->work.call);
}
void rest() { return grid.is_watched ? fibers::stop(ended, arrive) : fibers::hipsim_walk_on(ended); }

/// With ThreadSanitizer and lanes in lock step: what lanes of the warp have done comes before what the current thread
/// does.
void take_turn() {
  if (grid.warp_orders == nullptr) return;
  watch::acquire(&(*grid.warp_orders)[linear_index() / static_cast<std::uint32_t>(detail::warp_size)]);
}
/// And what the current thread has done comes before what others do.
void leave_turn() {
  if (grid.warp_orders == nullptr) return;
  watch::release(&(*grid.warp_orders)[linear_index() / static_cast<std::uint32_t>(detail::warp_size)]);
}

/// While one of these lives, the current thread does the runtime's work: as the host, so that what the runtime keeps is
/// no thread's. Lanes in lock step are ordered by it with the others of their warp.
class RuntimesWork {
 public:
  RuntimesWork() {
    traps::is_gpu_thread = false;
    if (!watch::has_thread_sanitizer()) return;
    strand_ = grid.threads[linear_index()].strand;
    leave_turn();
    watch::become(grid.host);
  }
  ~RuntimesWork() {
    if (watch::has_thread_sanitizer()) {
      watch::become(strand_);
      take_turn();
    }
    traps::is_gpu_thread = true;
  }
  RuntimesWork(const RuntimesWork&) = delete;
  RuntimesWork& operator=(const RuntimesWork&) = delete;

 private:
  watch::Strand strand_ = nullptr;
};

/// Waits at a barrier, with a sanitizer.
[[gnu::noinline]] void wait_watched(Place place) {
  if (!watch::has_thread_sanitizer()) return fibers::stop(place, arrive);
  char* const order = &grid.barriers->order[grid.generation % 2];
  watch::release(order);
  {
    const RuntimesWork work;
    fibers::stop(place, arrive);
  }
  watch::acquire(order);
}

/// The block has failed: nothing of it goes on.
[[noreturn]] void give_up() {
  watch::become(grid.host);
  fibers::leave(grid.scheduler);
}

/// What the current thread has passed in this block.
paths::Trace& current_trace() {
  Thread& thread = grid.threads[linear_index()];
  if (std::exchange(thread.traced_block, grid.num_blocks) != grid.num_blocks) thread.trace.clear();
  return thread.trace;
}

/// The current thread waits for others of its warp, after a call from its kernel.
void wait_for_warp(const Call& call, Place place, bool is_step) {
  Thread& thread = grid.threads[linear_index()];
  current_trace().read(call.returns_to, call.frame, (*walk.turn)->base, thread.path);
  thread.is_step = is_step;
  if (!is_step && thread.path.trouble != paths::Trouble::none) return;
  fibers::stop(place, arrive_at_warp_op);
  traps::is_gpu_thread = false;
}

[[noreturn]] void fail_undecided(const Place& place, const char* why) {
  fail(Report::lanes_undecided, "thread " + std::to_string(linear_index()) + " is at the warp operation at " +
                                    text_of(place) + ", and which lanes it meets there cannot be told: " + why);
  give_up();
}

const char* text_of(paths::Trouble trouble) {
  switch (trouble) {
    case paths::Trouble::none:
      break;
    case paths::Trouble::no_frames:
      return "a function between the kernel and it was compiled without frame pointers; link the CMake target "
             "hipsim::hipsim there";
    case paths::Trouble::untraced_loop:
      return "it is in a loop, of a function that does not tell its rounds; hipsim_trace_control_flow(TARGET) in CMake "
             "makes it tell them";
    case paths::Trouble::unreadable_code:
      return "a jump through a table is on the way; hipsim_trace_control_flow(TARGET) in CMake makes it a plain one";
  }
  return "";
}

/// The current thread has come to the block at `call`, or to an access within it.
void pass_point(const Call& call, bool is_block) {
  // A function without a frame, or the host's code that a report calls.
  void* const* const base = (*walk.turn)->base;
  if (call.frame > base || static_cast<const void*>(call.frame) < static_cast<const void*>(&call)) return;
  const RuntimesWork work;
  if (is_block) current_trace().note(call.returns_to, call.frame);
  if (!count_steps(1, reinterpret_cast<const void*>(call.returns_to))) give_up();
  if (runtime().config.lockstep) wait_for_warp(call, nowhere, true);
}

void divide_by_zero(const void* at) {
  fail(Report::division_by_zero,
       "thread " + std::to_string(linear_index()) + " divides by zero, or the lowest number by -1", at);
  give_up();
}

PooledStrand& pooled_strand_of(std::uint32_t linear) {
  return grid.pool->strands[grid.first_of_block + grid.strand_of[linear]];
}

void end_pooled(PooledStrand& pooled) {
  if (pooled.strand == nullptr) return;
  watch::end_strand(std::exchange(pooled, {}).strand);
  --grid.pool->num_made;
}

/// Deals the pool's strands out to the threads of a block.
void draw_strands(Random& random) {
  random.seed(runtime().config.seed * 0x2545f4914f6cdd1du + ++runtime().num_watched);
  const auto num_blocks = std::uint64_t{grid.launch->grid.x} * grid.launch->grid.y * grid.launch->grid.z;
  const std::uint64_t apart = std::min<std::uint64_t>(num_blocks, max_blocks_apart);
  grid.strands_of_block = std::min(grid.num_threads, max_pool / static_cast<std::uint32_t>(apart));
  grid.strand_of.resize(grid.num_threads);
  for (std::uint32_t i = 0; i < grid.num_threads; ++i) grid.strand_of[i] = i % grid.strands_of_block;
  if (grid.strands_of_block < grid.num_threads) shuffle(grid.strand_of, random);
}

/// Chooses the strands of a block. None of them is in use: blocks run one after the other.
void choose_strands(std::uint64_t block, Random& random) {
  const auto num_blocks = std::uint64_t{grid.launch->grid.x} * grid.launch->grid.y * grid.launch->grid.z;
  const std::uint32_t num_groups = max_pool / grid.strands_of_block;
  const std::uint64_t group = num_blocks <= num_groups ? block : random.below(num_groups);
  grid.first_of_block = static_cast<std::uint32_t>(group) * grid.strands_of_block;
  for (std::uint32_t i = 0; i < grid.strands_of_block; ++i) {
    PooledStrand& pooled = grid.pool->strands[grid.first_of_block + i];
    if (pooled.num_uses >= max_uses) end_pooled(pooled);
  }
}

/// Threads that will never go on: each may be in the middle of something, and so is what ThreadSanitizer knows of it.
void abandon_threads() {
  for (Fiber& worker : grid.workers) fibers::restart(worker);
  for (std::uint32_t i = 0; watch::has_thread_sanitizer() && i < grid.strands_of_block; ++i)
    end_pooled(grid.pool->strands[grid.first_of_block + i]);
  grid.at_barrier.clear();
  grid.elsewhere.clear();
  grid.in_warp_op.clear();
  const Failure failure = std::exchange(grid.failure, {});
  if (failure.text.empty()) return;
  report(failure.kind, failure.text + (failure.code != nullptr ? ", " + watch::place_of_code(failure.code) : ""));
}

void renew_shared_memory() {
  Random& random = runtime().random;
  renew_shared_variables(random);
  DynamicShared& shared = grid.shared;
  const std::size_t size = grid.launch->shared_bytes;
  if (size == 0) return;
  if (shared.memory == nullptr) {
    if (posix_memalign(&shared.memory, 256, size) != 0) std::abort();
    shared.size = size;
  }
  fill_with_junk(shared.memory, size, random.next());
  watch::forget(shared.memory, size);
}

bool run_block() {
  detail::cursor.next = 0;
  detail::cursor.end = grid.num_threads;
  if (runtime().config.seed != 0) shuffle(grid.start_order, runtime().random);
  renew_shared_memory();
  if (watch::has_thread_sanitizer()) {
    grid.barriers = std::make_unique<Barriers>();
    if (runtime().config.lockstep) grid.warp_orders = std::make_unique<WarpOrders>(grid.warps.size());
  }
  grid.order.clear();
  if (grid.workers.empty()) make_worker();
  grid.workers[0].thread = {};
  ++grid.num_blocks;
  grid.steps_left = runtime().config.max_steps;
  for (Warp& warp : grid.warps) warp.met.clear();
  fibers::switch_to(grid.workers[0]);
  if (grid.has_failed) abandon_threads();
  return !grid.has_failed;
}

void set_block(std::uint64_t linear) {
  const dim3& dim = detail::grid_dim;
  if (dim.y == 1 && dim.z == 1) {
    detail::block_idx = {static_cast<std::uint32_t>(linear), 0, 0};  // four blocks would spend 0.1 us on divisions
    return;
  }
  detail::block_idx.x = static_cast<std::uint32_t>(linear % dim.x);
  detail::block_idx.y = static_cast<std::uint32_t>(linear / dim.x % dim.y);
  detail::block_idx.z = static_cast<std::uint32_t>(linear / dim.x / dim.y);
}

/// The blocks, in the order of the seed: a walk with a stride that meets each once.
template <class Visit>
bool for_each_block(std::uint64_t count, Visit visit) {
  std::uint64_t stride = 1;
  std::uint64_t at = 0;
  if (runtime().config.seed != 0 && count > 1) {
    const auto gcd = [](std::uint64_t a, std::uint64_t b) {
      while (b != 0) a = std::exchange(b, a % b);
      return a;
    };
    do stride = 1 + runtime().random.next() % (count - 1);
    while (gcd(stride, count) != 1);
    at = runtime().random.next() % count;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!visit(at)) return false;
    at += stride;
    if (at >= count) at -= count;
  }
  return true;
}

}  // namespace

void detail::begin_thread(std::uint32_t at) {
  traps::is_gpu_thread = true;
  cursor.at = at;
  current = thread_of(grid.start_order[at]);
  if (!watch::has_thread_sanitizer()) return;
  traps::is_gpu_thread = false;
  // The stack below here held the frames of a thread that this one is not ordered behind.
  fibers::forget_frames_below(__builtin_frame_address(0));
  const std::uint32_t linear = linear_index();
  PooledStrand& pooled = pooled_strand_of(linear);
  if (pooled.strand == nullptr) {
    // Who makes a strand comes before it: that is the operation, and not the host.
    watch::become(grid.strand);
    pooled.strand = watch::make_strand("GPU thread");
    ++grid.pool->num_made;
  }
  ++pooled.num_uses;
  grid.threads[linear].strand = pooled.strand;
  watch::become(pooled.strand);
  watch::acquire(&grid.ends->start);
  take_turn();
  traps::is_gpu_thread = true;
}

void detail::end_thread() {
  traps::is_gpu_thread = false;
  if (!watch::has_thread_sanitizer()) return;
  watch::release(&grid.ends->end);
  leave_turn();
  watch::become(grid.host);
}

// ---- what kernels call ----------------------------------------------------------------------------------------------

void* detail::dynamic_shared() { return grid.shared.memory; }

int detail::lane_id() { return static_cast<int>(linear_index() % static_cast<std::uint32_t>(warp_size)); }

void detail::barrier(Place place) {
  // The last thing this does, so that it is a jump and comes back to the kernel itself.
  return grid.is_watched ? wait_watched(place) : fibers::hipsim_walk_on(place);
}

detail::Met detail::meet(std::uint64_t value, int source_lane, Place place, bool keeps_calls) {
  const auto* const frame = static_cast<void* const*>(__builtin_frame_address(0));
  const RuntimesWork work;
  if (!keeps_calls)
    fail_undecided(place, "its file was compiled without hipsim's options; link the CMake target hipsim::hipsim there");
  Thread& thread = grid.threads[linear_index()];
  thread.value = value;
  thread.source_lane = source_lane;
  wait_for_warp({reinterpret_cast<paths::Address>(frame[1]), static_cast<void* const*>(frame[0])}, place, false);
  if (thread.path.trouble != paths::Trouble::none) fail_undecided(place, text_of(thread.path.trouble));
  return thread.met;
}

void detail::count_step() {
  if (traps::is_gpu_thread && !count_steps(1, __builtin_return_address(0))) give_up();
}

// What an instrumented kernel calls at each block, and before each access to memory. The frame is the kernel's: it was
// compiled with frame pointers.
extern "C" __attribute__((noinline)) void hipsim_trace_block() {
  if (!traps::is_gpu_thread) return;
  const auto* const frame = static_cast<void* const*>(__builtin_frame_address(0));
  pass_point({reinterpret_cast<paths::Address>(frame[1]), static_cast<void* const*>(frame[0])}, true);
}
extern "C" __attribute__((noinline)) void hipsim_trace_access() {
  if (!traps::is_gpu_thread || !runtime().config.lockstep) return;
  const auto* const frame = static_cast<void* const*>(__builtin_frame_address(0));
  pass_point({reinterpret_cast<paths::Address>(frame[1]), static_cast<void* const*>(frame[0])}, false);
}
// For files of an instrumented target that do not include <hip/hip_runtime.h>: they have no kernels.
#define HIPSIM_NO_KERNEL(name) \
  extern "C" __attribute__((weak)) void name() {}
HIPSIM_NO_KERNEL(__sanitizer_cov_trace_pc)
HIPSIM_NO_KERNEL(__sanitizer_cov_load1)
HIPSIM_NO_KERNEL(__sanitizer_cov_load2)
HIPSIM_NO_KERNEL(__sanitizer_cov_load4)
HIPSIM_NO_KERNEL(__sanitizer_cov_load8)
HIPSIM_NO_KERNEL(__sanitizer_cov_load16)
HIPSIM_NO_KERNEL(__sanitizer_cov_store1)
HIPSIM_NO_KERNEL(__sanitizer_cov_store2)
HIPSIM_NO_KERNEL(__sanitizer_cov_store4)
HIPSIM_NO_KERNEL(__sanitizer_cov_store8)
HIPSIM_NO_KERNEL(__sanitizer_cov_store16)
#undef HIPSIM_NO_KERNEL

// ---- launches -------------------------------------------------------------------------------------------------------

namespace {
void make_room(std::uint32_t num_threads) {
  if (grid.num_threads == num_threads) return;
  grid.num_threads = num_threads;
  grid.threads.assign(num_threads, {});
  grid.start_order.resize(num_threads);
  // Fibers are known by their address.
  grid.workers.reserve(max_threads);
}

/// The operation's strand hands over to the host's, which schedules the threads.
void begin_watching() {
  grid.ends = std::make_unique<Ends>();
  watch::release(&grid.ends->start);
  watch::become(grid.host);
  grid.pool = &grid.pools.use(grid.strand);
}

/// Why no device runs such a launch; empty when one does.
std::string why_not(const dim3& grid_dims, const dim3& block, std::size_t shared_bytes) {
  const Limits limits = hipsim::limits();
  const std::uint64_t num_threads = std::uint64_t{block.x} * block.y * block.z;
  if (num_threads == 0 || block.x > limits.threads_per_block || block.y > limits.threads_per_block ||
      block.z > limits.block_z || num_threads > limits.threads_per_block)
    return "a block has 1 to " + std::to_string(limits.threads_per_block) + " threads, and at most " +
           std::to_string(limits.block_z) + " in z";
  if (grid_dims.x == 0 || grid_dims.y == 0 || grid_dims.z == 0 || grid_dims.x > limits.grid_x ||
      grid_dims.y > limits.grid_yz || grid_dims.z > limits.grid_yz)
    return "a grid has 1 to " + std::to_string(limits.grid_x) + " blocks in x, and 1 to " +
           std::to_string(limits.grid_yz) + " in y and z";
  const std::uint64_t num_blocks = std::uint64_t{grid_dims.x} * grid_dims.y * grid_dims.z;
  if (num_blocks > max_grid_threads / num_threads)
    return "a launch has at most " + std::to_string(max_grid_threads) + " threads";
  if (shared_bytes > limits.shared_bytes)
    return "a block has at most " + std::to_string(limits.shared_bytes) + " bytes of shared memory";
  return {};
}
}  // namespace

bool run_kernel(const KernelLaunch& launch, watch::Strand strand) {
  grid.host = runtime().host_strand;
  grid.strand = strand;
  // First of all: what follows is the host's doing.
  if (watch::has_thread_sanitizer()) begin_watching();
  grid.launch = &launch;
  grid.has_failed = false;
  grid.scheduler = walk.turn;
  walk.choose = arrive;
  make_room(launch.block.x * launch.block.y * launch.block.z);
  std::iota(grid.start_order.begin(), grid.start_order.end(), 0u);
  detail::block_dim = launch.block;
  detail::grid_dim = launch.grid;
  detail::warp_size = runtime().config.warp_size;
  grid.is_line = launch.block.y == 1 && launch.block.z == 1;
  grid.is_watched = watch::has_thread_sanitizer() || watch::has_address_sanitizer();
  detail::cursor.is_plain = grid.is_line && runtime().config.seed == 0 && !watch::has_thread_sanitizer();
  // Not the runtime's: with ThreadSanitizer and without, a seed gives the same schedule.
  Random strands;
  if (watch::has_thread_sanitizer()) draw_strands(strands);
  const auto warp_size = static_cast<std::uint32_t>(detail::warp_size);
  grid.warps.resize((grid.num_threads + warp_size - 1) / warp_size);
  traps::catch_divisions(divide_by_zero);
  const std::uint64_t num_blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const bool went_well = for_each_block(num_blocks, [&](std::uint64_t block) {
    if (watch::has_thread_sanitizer()) choose_strands(block, strands);
    set_block(block);
    return run_block();
  });
  grid.barriers.reset();
  grid.warp_orders.reset();
  grid.shared.release();
  if (watch::has_thread_sanitizer()) {
    watch::become(strand);
    watch::acquire(&grid.ends->end);
    grid.ends.reset();
    grid.pool = nullptr;
  }
  return went_well;
}

void forget_strands(watch::Strand owner) {
  if (!watch::has_thread_sanitizer()) return;
  // The end of an operation may be the end of a stream that it waited for. What the runtime keeps is the host's all the
  // same.
  const watch::Strand current = watch::current_strand();
  if (runtime().is_running) watch::become(runtime().host_strand);
  grid.pools.forget(owner);
  watch::become(current);
}

void detail::launch(const char* name, const Work& work, dim3 grid_dims, dim3 block, std::size_t shared_bytes,
                    hipStream_t stream, Place place) {
  auto launch = std::make_unique<KernelLaunch>();
  launch->name = name;
  launch->work = work;
  launch->grid = grid_dims;
  launch->block = block;
  launch->shared_bytes = shared_bytes;
  launch->place = place;
  ApiCall call{"hipLaunchKernel", place};
  if (call.refused()) return;
  if (work.run == nullptr) {
    call.fail(hipErrorInvalidDeviceFunction, std::string{"kernel "} + name + " is null");
    return;
  }
  if (const std::string reason = why_not(grid_dims, block, shared_bytes); !reason.empty()) {
    call.fail(hipErrorInvalidConfiguration, std::string{"kernel "} + name + ": grid " +
                                                text_of_index(uint3{grid_dims.x, grid_dims.y, grid_dims.z}) +
                                                ", block " + text_of_index(uint3{block.x, block.y, block.z}) + ", " +
                                                std::to_string(shared_bytes) + " bytes of shared memory: " + reason);
    return;
  }
  enqueue(call, stream, std::make_shared<const Payload>(std::move(launch)), place);
}

}  // namespace hipsim
