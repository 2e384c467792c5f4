#include "runtime.hpp"

#include "fibers.hpp"
#include "gpu_strands.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
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
  watch::Strand strand = nullptr;
};

using fibers::Fiber;
using Fibers = std::vector<Fiber*>;

/// ThreadSanitizer's handles of a block's barriers. Two take turns: nobody reaches the next but one before all have
/// left the one before. New for each block, so that blocks are not ordered by them.
struct Barriers {
  char order[2]{};
};

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

/// What a warp does next: which of its lanes meet.
struct WarpOp {
  std::uint32_t leader = 0;  ///< the lowest lane that waits
  Place place;
  Fibers lanes;
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
  std::vector<Thread> threads;   ///< by linear index
  std::vector<Fiber> workers;    ///< what threads run on; none in the middle of one between blocks
  Fibers order;                  ///< of this round; empty while one worker runs all threads
  Fibers at_barrier;             ///< in the order they came, while there is no meeting
  Place barrier;                 ///< of the first of them
  Fibers elsewhere;              ///< those of them that wait at another barrier
  Fibers in_warp_op;             ///< in the order they came, but for those that were left waiting
  std::vector<WarpOp> warp_ops;  ///< by warp; scratch of complete_warp_ops
  Fiber** scheduler = nullptr;   ///< goes on when the block has ended
  bool has_failed = false;
  bool is_watched = false;  ///< by a sanitizer
  bool is_line = true;      ///< y and z are 0 for all threads
  DynamicShared shared;
  // For ThreadSanitizer.
  watch::Strand strand = nullptr;  ///< of the operation
  watch::Strand host = nullptr;    ///< whoever schedules threads is the host, so that its lists are nobody else's
  std::unique_ptr<Ends> ends;
  std::unique_ptr<Barriers> barriers;
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

/// "0 to 31, 40": the threads whose place this is.
std::string list_threads(const std::vector<Place>& place_of, const Place& place) {
  std::string text;
  for (std::size_t first = 0; first < place_of.size(); ++first) {
    if (!is_same(place_of[first], place)) continue;
    std::size_t last = first;
    while (last + 1 < place_of.size() && is_same(place_of[last + 1], place)) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last > first) text += " to " + std::to_string(last);
    first = last;
  }
  return text;
}

std::string text_of_block() {
  return std::string{"kernel "} + grid.launch->name + " (launched at " + text_of(grid.launch->place) + "), block " +
         text_of_index(detail::block_idx);
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

/// Warp by warp, and in each at one place: the first line in the file where the lowest lane waits. The others wait on:
/// as a rule those that go on come to them, for a warp is together again behind a branch.
void complete_warp_ops() {
  const auto warp_size = static_cast<std::uint32_t>(detail::warp_size);
  const auto place_of = [](const Fiber* fiber) -> const Place& { return grid.threads[fiber->thread.linear].place; };
  grid.warp_ops.assign((grid.num_threads + warp_size - 1) / warp_size, {grid.num_threads, nowhere, {}});
  const auto op_of = [=](const Fiber* fiber) -> WarpOp& { return grid.warp_ops[fiber->thread.linear / warp_size]; };
  for (const Fiber* fiber : grid.in_warp_op) {
    WarpOp& op = op_of(fiber);
    if (fiber->thread.linear > op.leader) continue;
    op.leader = fiber->thread.linear;
    op.place = place_of(fiber);
  }
  for (const Fiber* fiber : grid.in_warp_op) {
    WarpOp& op = op_of(fiber);
    const Place& place = place_of(fiber);
    if (place.line < op.place.line && is_same({place.file, op.place.line}, op.place)) op.place = place;
  }
  std::size_t num_left = 0;
  for (Fiber* fiber : grid.in_warp_op) {
    WarpOp& op = op_of(fiber);
    if (is_same(place_of(fiber), op.place))
      op.lanes.push_back(fiber);
    else
      grid.in_warp_op[num_left++] = fiber;
  }
  grid.in_warp_op.resize(num_left);
  for (const WarpOp& op : grid.warp_ops)
    if (!op.lanes.empty()) complete_warp_op(op.lanes);
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
      complete_warp_ops();
    } else if (grid.at_barrier.empty()) {
      return false;
    } else if (!open_barrier()) {
      grid.has_failed = true;
      return false;
    }
  }
  if (runtime().config.seed != 0) shuffle(grid.order, runtime().random);
  walk.last = grid.order.data() + grid.order.size() - 1;
  return true;
}

/// The current thread has stopped, and is where it belongs.
Fiber* go_on() {
  if (walk.turn != walk.last) return fibers::go_on_with(walk.turn + 1);
  return fibers::go_on_with(begin_round() ? grid.order.data() : grid.scheduler);
}

/// At a barrier, or at its end.
Fiber* arrive(Place place) {
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
  if (grid.order.empty()) spread_out();
  disperse();
  grid.threads[linear_index()].place = place;
  grid.in_warp_op.push_back(*walk.turn);
  return go_on();
}

/// A worker's work: the threads of a block up to the first that stops, or one thread.
void run_threads() { grid.launch->work.run(grid.launch->work.call); }
void rest() { return grid.is_watched ? fibers::stop(ended, arrive) : fibers::hipsim_walk_on(ended); }

const detail::Met& wait_for_warp(const Place& place, std::uint64_t value, int source_lane) {
  Thread& thread = grid.threads[linear_index()];
  thread.value = value;
  thread.source_lane = source_lane;
  fibers::stop(place, arrive_at_warp_op);
  return thread.met;
}

/// Waits at a barrier, with a sanitizer.
[[gnu::noinline]] void wait_watched(Place place) {
  if (!watch::has_thread_sanitizer()) return fibers::stop(place, arrive);
  char* const order = &grid.barriers->order[grid.generation % 2];
  const watch::Strand strand = grid.threads[linear_index()].strand;
  watch::release(order);
  watch::become(grid.host);
  fibers::stop(place, arrive);
  watch::become(strand);
  watch::acquire(order);
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

/// Threads that will never go on.
void abandon_threads() {
  for (Fiber* fiber : grid.at_barrier) {
    fibers::restart(*fiber);
    // As the stack, it is in the middle of something.
    if (watch::has_thread_sanitizer()) end_pooled(pooled_strand_of(fiber->thread.linear));
  }
  grid.at_barrier.clear();
  grid.elsewhere.clear();
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
  if (watch::has_thread_sanitizer()) grid.barriers = std::make_unique<Barriers>();
  grid.order.clear();
  if (grid.workers.empty()) make_worker();
  grid.workers[0].thread = {};
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
  cursor.at = at;
  current = thread_of(grid.start_order[at]);
  if (!watch::has_thread_sanitizer()) return;
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
}

void detail::end_thread() {
  if (!watch::has_thread_sanitizer()) return;
  watch::release(&grid.ends->end);
  watch::become(grid.host);
}

// ---- what kernels call ----------------------------------------------------------------------------------------------

void* detail::dynamic_shared() { return grid.shared.memory; }

int detail::lane_id() { return static_cast<int>(linear_index() % static_cast<std::uint32_t>(warp_size)); }

void detail::barrier(Place place) {
  // The last thing this does, so that it is a jump and comes back to the kernel itself.
  return grid.is_watched ? wait_watched(place) : fibers::hipsim_walk_on(place);
}

detail::Met detail::meet(std::uint64_t value, int source_lane, Place place) {
  if (!watch::has_thread_sanitizer()) return wait_for_warp(place, value, source_lane);
  const watch::Strand strand = grid.threads[linear_index()].strand;
  watch::become(grid.host);
  const Met met = wait_for_warp(place, value, source_lane);
  watch::become(strand);
  return met;
}

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
  const std::uint64_t num_blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const bool went_well = for_each_block(num_blocks, [&](std::uint64_t block) {
    if (watch::has_thread_sanitizer()) choose_strands(block, strands);
    set_block(block);
    return run_block();
  });
  grid.barriers.reset();
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
  if (watch::has_thread_sanitizer()) grid.pools.forget(owner);
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
