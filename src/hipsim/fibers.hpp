#pragma once

#include <hip/hip_runtime.h>

/// Stacks to switch between: what GPU threads run on.
namespace hipsim::fibers {

struct Stack;

/// A stack and the GPU thread that runs on it. What a barrier needs of it lies here, close to that of the next one, and
/// not on the stack: 256 stacks are as many pages, more than the processor has addresses of at hand. 3.8 instead of 4.8
/// ns for each thread and barrier, and of 11 in one process out of five.
struct Fiber {
  void* registers[8]{};  ///< where it goes on, while it does not run
  detail::Current thread{};
  Stack* stack = nullptr;
  void* const* base = nullptr;  ///< the frame of the function that runs threads: where a thread's calls begin
};

/// Makes it run `work` and `rest` in turn, as often as somebody goes on with it. False when there is no memory.
[[nodiscard]] bool make(Fiber& fiber, void (*work)(), void (*rest)());
/// Lets it forget what it is in the middle of. Not the current one.
void restart(Fiber& fiber);

/// Chooses who goes on, with `go_on_with`, when the current fiber has stopped at `place`.
using Choose = Fiber* (*)(Place place);

/// Stops the current fiber, lets `choose` say who goes on, and goes on with that. Comes back when somebody chooses the
/// fiber that stopped.
void stop(Place place, Choose choose);
/// The stack of the current fiber is left for good, unless it is restarted.
[[noreturn]] void leave(Fiber** to);
/// Goes on with `to`, which is not the current fiber.
void switch_to(Fiber& to);

/// Fibers in a row. While each of them stops at the same place, the next one goes on.
struct Walk {
  Fiber** turn;  ///< the current one
  Fiber** last;
  Place place;
  Choose choose;  ///< asked behind the last, and at another place
};
extern "C" __attribute__((visibility("hidden"))) Walk hipsim_walk;

/// `stop` with the walk's `choose`, for programs without AddressSanitizer. What a barrier costs is what this costs.
extern "C" void hipsim_walk_on(Place place);

/// On the stack of the current fiber: ThreadSanitizer forgets the frames that were ever below `frame`.
void forget_frames_below(void* frame);

/// Makes `*to` the current fiber, and its thread the one that runs. For a Choose.
Fiber* go_on_with(Fiber** to);

}  // namespace hipsim::fibers
