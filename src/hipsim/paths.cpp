#include "paths.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

namespace hipsim::paths {
namespace {

using code::Answer;

/// The blocks of `list`, in order, that a thread at `point` can come back to without passing one kept before: those by
/// which the loops around `point` were entered, the outer first. Others are behind the thread for good.
struct Kept {
  std::vector<std::size_t> indices;
  bool is_unknown = false;
};
Kept keep_loops(const std::vector<Address>& list, Address point) {
  Kept kept;
  std::vector<Address> outer;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Answer answer = code::reaches(point, list[i], outer);
    kept.is_unknown |= answer == Answer::unknown;
    if (answer != Answer::yes) continue;
    kept.indices.push_back(i);
    outer.push_back(list[i]);
  }
  return kept;
}

/// Whether a thread at `point` can come there again.
Answer is_in_loop(Address point) {
  static auto* const known = new std::unordered_map<Address, Answer>;
  const auto [found, is_new] = known->try_emplace(point);
  if (is_new) found->second = code::reaches(point, point, {});
  return found->second;
}

}  // namespace

// ---- what a thread has passed
// -----------------------------------------------------------------------------------------

/// Blocks a thread has passed in a function and can come back to, and the one it is in. Shared by all threads.
struct Trace::State {
  std::vector<Address> blocks;
  bool is_unknown = false;
  /// By where the thread goes next.
  mutable std::unordered_map<Address, Transition> next;
  /// By the address a call returns to: which of the blocks are loops around it.
  mutable std::unordered_map<Address, Kept> loops;
};

struct Trace::Transition {
  const State* to = nullptr;
  std::vector<std::size_t> kept;  ///< the blocks of the state before that are in the next
  bool is_again = false;          ///< the last of them is entered again; else a new one comes behind them
};

Trace::State& Trace::root() {
  static auto* const state = new State;
  return *state;
}

const Trace::Transition& Trace::transition(const State& state, Address point) {
  const auto [found, is_new] = state.next.try_emplace(point);
  Transition& made = found->second;
  if (!is_new) return made;
  static auto* const states = new std::map<std::vector<Address>, std::unique_ptr<State>>;
  Kept kept;
  const auto again = std::find(state.blocks.begin(), state.blocks.end(), point);
  made.is_again = again != state.blocks.end();
  if (made.is_again)
    for (std::size_t i = 0; i <= static_cast<std::size_t>(again - state.blocks.begin()); ++i) kept.indices.push_back(i);
  else
    kept = keep_loops(state.blocks, point);
  made.kept = kept.indices;
  std::vector<Address> blocks;
  for (const std::size_t i : made.kept) blocks.push_back(state.blocks[i]);
  if (!made.is_again) blocks.push_back(point);
  std::unique_ptr<State>& to = (*states)[blocks];
  if (to == nullptr) {
    to = std::make_unique<State>();
    to->blocks = std::move(blocks);
  }
  to->is_unknown |= kept.is_unknown;
  made.to = to.get();
  return made;
}

void Trace::note(Address point, void* const* frame) {
  // Stacks grow down: functions with lower frames have returned.
  while (depth_ > 0 && frames_[depth_ - 1].at < frame) --depth_;
  void* const return_address = frame[1];
  if (depth_ > 0 && frames_[depth_ - 1].at == frame && frames_[depth_ - 1].return_address != return_address) --depth_;
  if (depth_ == 0 || frames_[depth_ - 1].at != frame) {
    if (frames_.size() == depth_) frames_.emplace_back();
    Frame& entered = frames_[depth_++];
    entered.at = frame;
    entered.return_address = return_address;
    entered.state = &root();
    entered.rounds.clear();
  }
  Frame& top = frames_[depth_ - 1];
  const Transition& step = transition(*top.state, point);
  for (std::size_t i = 0; i < step.kept.size(); ++i) top.rounds[i] = top.rounds[step.kept[i]];
  top.rounds.resize(step.kept.size());
  if (step.is_again)
    ++top.rounds.back();
  else
    top.rounds.push_back(0);
  top.state = step.to;
}

// ---- paths
// ------------------------------------------------------------------------------------------------------------

const Trace::Frame* Trace::find(void* const* frame) const {
  for (std::size_t i = 0; i < depth_; ++i)
    if (frames_[i].at == frame && frames_[i].return_address == frame[1]) return &frames_[i];
  return nullptr;
}

void Trace::add_loops(const Frame* frame, Address point, Path& path) {
  std::vector<std::uint64_t>& words = path.words;
  words.push_back(point);
  const std::size_t count = words.size();
  words.push_back(0);
  const auto complain = [&](Trouble trouble) {
    if (path.trouble == Trouble::none) path.trouble = trouble;
  };
  bool is_unknown = false;
  if (frame != nullptr) {
    const auto [found, is_new] = frame->state->loops.try_emplace(point);
    if (is_new) found->second = keep_loops(frame->state->blocks, point);
    for (const std::size_t i : found->second.indices) {
      words.push_back(frame->state->blocks[i]);
      words.push_back(frame->rounds[i]);
      ++words[count];
    }
    is_unknown = found->second.is_unknown || frame->state->is_unknown;
  }
  const Answer loop = is_in_loop(point);
  if (is_unknown || loop == Answer::unknown) return complain(Trouble::unreadable_code);
  if (loop == Answer::yes && words[count] == 0) complain(Trouble::untraced_loop);
}

void Trace::read(Address point, void* const* frame, void* const* base, Path& path) const {
  struct Call {
    Address point;
    void* const* frame;
  };
  // Deeper recursion than a stack of a GPU thread holds.
  constexpr std::size_t max_calls = 4096;
  static auto* const calls = new std::vector<Call>;
  calls->clear();
  path.words.clear();
  path.trouble = Trouble::none;
  calls->push_back({point, frame});
  while (frame != base && calls->size() < max_calls) {
    auto* const next = static_cast<void* const*>(frame[0]);
    const bool is_frame = next > frame && next <= base && reinterpret_cast<Address>(next) % sizeof(void*) == 0;
    if (!is_frame) break;
    calls->push_back({reinterpret_cast<Address>(frame[1]), next});
    frame = next;
  }
  if (frame != base) path.trouble = Trouble::no_frames;
  for (auto call = calls->rbegin(); call != calls->rend(); ++call) add_loops(find(call->frame), call->point, path);
}

namespace {

/// One function of a path.
struct View {
  Address point;
  std::size_t num_loops;
  const std::uint64_t* loops;

  explicit View(const std::uint64_t* at) : point(at[0]), num_loops(at[1]), loops(at + 2) {}
  [[nodiscard]] Address block(std::size_t i) const { return loops[2 * i]; }
  [[nodiscard]] std::uint64_t round(std::size_t i) const { return loops[2 * i + 1]; }
  [[nodiscard]] std::size_t size() const { return 2 + 2 * num_loops; }
};

Order compare(const View& first, const View& second) {
  std::vector<Address> common;
  std::size_t i = 0;
  for (; i < std::min(first.num_loops, second.num_loops) && first.block(i) == second.block(i); ++i) {
    if (first.round(i) != second.round(i)) return first.round(i) < second.round(i) ? Order::before : Order::after;
    common.push_back(first.block(i));
  }
  const bool is_same_loop = i == first.num_loops && i == second.num_loops;
  // Entered by different blocks: a loop with two entries.
  if (first.point == second.point) return is_same_loop ? Order::same : Order::unknown;
  const Answer forth = code::reaches(first.point, second.point, common);
  const Answer back = code::reaches(second.point, first.point, common);
  if (forth == Answer::unknown || back == Answer::unknown) return Order::unknown;
  if (forth == back) return forth == Answer::no ? Order::apart : Order::unknown;
  return forth == Answer::yes ? Order::before : Order::after;
}

}  // namespace

Order compare(const Path& first, const Path& second) {
  if (first.words == second.words) return Order::same;
  std::size_t at = 0;
  // Paths differ in a function that both have: one that goes on deeper has another point in the function before.
  while (at < first.words.size() && at < second.words.size()) {
    const View one{&first.words[at]};
    const View other{&second.words[at]};
    const Order order = compare(one, other);
    if (order != Order::same) return order;
    at += one.size();
  }
  return Order::unknown;
}

}  // namespace hipsim::paths
