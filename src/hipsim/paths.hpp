#pragma once

#include "code.hpp"

#include <cstdint>
#include <vector>

/// On which path a GPU thread has come to a point of its kernel: the calls it is in, and the round of each loop around
/// them. Lanes of a warp meet where their paths are the same. It is what LLVM calls converged, with the cycles of the
/// host's machine code: https://llvm.org/docs/ConvergenceAndUniformity.html
namespace hipsim::paths {

using code::Address;

/// Why a path says too little.
enum class Trouble : std::uint8_t {
  none,
  no_frames,       ///< a function on the way has no frame pointer: its calls cannot be told
  untraced_loop,   ///< the point is in a loop of a function that does not tell its blocks: the round cannot be told
  unreadable_code  ///< as above, as far as can be told: a jump through a table is on the way
};

/// A path as words, the kernel first. For each function: the address its call returns to, the number of loops around
/// that call, and for each of them, the outer ones first, the block it is entered by and the round, from 0.
struct Path {
  std::vector<std::uint64_t> words;
  Trouble trouble = Trouble::none;
};

enum class Order : std::uint8_t {
  same,
  before,  ///< a lane at the first can still come to the second, or is in an earlier round of the same loop
  after,   ///< the other way round
  apart,   ///< neither comes to the other, as in the two branches of an `if`
  unknown
};
[[nodiscard]] Order compare(const Path& first, const Path& second);

/// The blocks of an instrumented kernel that a GPU thread has been in, as far as its rounds need them.
class Trace {
 public:
  void clear() { depth_ = 0; }
  /// The thread has come to the block at `point`, in the function with this frame.
  void note(Address point, void* const* frame);
  /// The path to a call that returns to `point`, from a function with this frame. `base` is the frame of the function
  /// that runs threads, where paths begin.
  void read(Address point, void* const* frame, void* const* base, Path& path) const;

 private:
  struct State;
  struct Frame {
    void* const* at = nullptr;
    void* return_address = nullptr;
    const State* state = nullptr;
    std::vector<std::uint64_t> rounds;  ///< of the blocks that `state` lists
  };
  struct Transition;
  static State& root();
  static const Transition& transition(const State& state, Address point);
  [[nodiscard]] const Frame* find(void* const* frame) const;
  static void add_loops(const Frame* frame, Address point, Path& path);

  std::vector<Frame> frames_;  ///< the kernel's first
  std::size_t depth_ = 0;      ///< how many of them are there
};

}  // namespace hipsim::paths
