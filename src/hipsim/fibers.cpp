#include "fibers.hpp"

#include "watch.hpp"

#include <boost/context/detail/fcontext.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace hipsim::fibers {

struct Stack {
  const void* low = nullptr;
  std::size_t size = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's
  char* top = nullptr;
  std::size_t untouched = 0;  ///< bytes from `low` up that no frame has ever reached: whole pages
};

namespace {

/// What a kernel may need, with room for AddressSanitizer's larger frames.
constexpr std::size_t stack_size = std::size_t{128} << 10;
/// Below each stack, where nobody may go: a kernel that runs out of stack hits it instead of its neighbour, also with a
/// frame that is larger than the stack. Addresses only. Not a round number: the page table's entries for 256 stacks a
/// power of two apart would fall into the same few cache sets, and barriers cost two thirds more.
constexpr std::size_t guard_size = (std::size_t{1} << 20) + (std::size_t{32} << 10);
/// Stacks begin at different places of their pages, or the first lines of all of them fall into the same cache sets: a
/// tenth slower when kernels keep variables there.
constexpr std::size_t colour_size = 1600;

Stack host_stack;
Fiber host{{}, {}, &host_stack, nullptr};
Fiber* host_turn = &host;
Fiber* only_turn = nullptr;
Fiber** only_goal = nullptr;

void (*steps[2])();

/// The fiber that the current one was switched to from; AddressSanitizer wants to know.
Fiber* left = nullptr;

Fiber* current() { return *hipsim_walk.turn; }

/// First thing on a stack that was switched to: AddressSanitizer has to know.
void tell_where_we_are() {
  if (watch::has_address_sanitizer())
    watch::arrive_on_stack(current()->stack->fake_stack, &left->stack->low, &left->stack->size);
}

[[noreturn]] void run() {
  tell_where_we_are();
  // One call for both steps: it tells the processor where the next return goes, and that is the one from the work of
  // the fiber that goes on when this one rests. 4.5 instead of 6 us to begin and end 256 threads.
  for (unsigned i = 0;; i ^= 1) steps[i]();
}

}  // namespace

Walk hipsim_walk{&host_turn, &host_turn, {}, nullptr};

Fiber* go_on_with(Fiber** to) {
  Fiber& fiber = **to;
  hipsim_walk.turn = to;
  hipsim::detail::current = fiber.thread;
  if (watch::has_address_sanitizer() && &fiber != left)
    watch::leave_stack(&left->stack->fake_stack, fiber.stack->low, fiber.stack->size);
  return &fiber;
}

// ---- the switch -----------------------------------------------------------------------------------------------------

#if defined(__x86_64__) && !defined(HIPSIM_BOOST_SWITCH)

// By hand. Boost's switch is a call that does not return where it came from: the processor, which expects calls and
// returns to pair, then mispredicts the return behind every barrier, and the floating-point modes it saves are none of
// a kernel's business. Here `choose` is the only call that returns; the way back into the kernel is a jump. And the
// usual step of a walk, to the next one, asks nobody. For each of 256 threads and each barrier: 13 ns with `choose`,
// 4 ns without, see bench/.
extern "C" void hipsim_switch_stack(Place place, Choose choose);
static_assert(offsetof(Fiber, registers) == 0 && offsetof(Fiber, thread) == 64 && sizeof(detail::Current) == 16);
static_assert(offsetof(Walk, turn) == 0 && offsetof(Walk, last) == 8 && offsetof(Walk, place) == 16 &&
              offsetof(Place, line) == 8 && offsetof(Walk, choose) == 32);
asm(R"(
  .macro hipsim_save
  movq hipsim_walk(%rip), %rax
  movq (%rax), %rcx
  popq %r8
  movq %r8, (%rcx)
  movq %rsp, 8(%rcx)
  movq %rbp, 16(%rcx)
  movq %rbx, 24(%rcx)
  movq %r12, 32(%rcx)
  movq %r13, 40(%rcx)
  movq %r14, 48(%rcx)
  movq %r15, 56(%rcx)
  .endm

  .macro hipsim_restore
  movq 8(%rcx), %rsp
  movq 16(%rcx), %rbp
  movq 24(%rcx), %rbx
  movq 32(%rcx), %r12
  movq 40(%rcx), %r13
  movq 48(%rcx), %r14
  movq 56(%rcx), %r15
  jmp *(%rcx)
  .endm

  .text
  .globl hipsim_walk_on
  .hidden hipsim_walk_on
  .type hipsim_walk_on, @function
hipsim_walk_on:
  hipsim_save
  cmpq %rax, 8+hipsim_walk(%rip)
  je 1f
  cmpq %rdi, 16+hipsim_walk(%rip)
  jne 1f
  cmpl %esi, 24+hipsim_walk(%rip)
  jne 1f
  movq 8(%rax), %rcx
  addq $8, %rax
  movq %rax, hipsim_walk(%rip)
  movups 64(%rcx), %xmm0
  movq _ZN6hipsim6detail7currentE@GOTPCREL(%rip), %rax
  movups %xmm0, (%rax)
  hipsim_restore
1:
  movq 32+hipsim_walk(%rip), %rdx
  jmp 2f
  .size hipsim_walk_on, . - hipsim_walk_on

  .globl hipsim_switch_stack
  .hidden hipsim_switch_stack
  .type hipsim_switch_stack, @function
hipsim_switch_stack:
  hipsim_save
2:
  andq $-16, %rsp
  call *%rdx
  movq %rax, %rcx
  hipsim_restore
  .size hipsim_switch_stack, . - hipsim_switch_stack
)");

namespace {
/// As if somebody had called `run` from nowhere, where backtraces end.
void begin(Fiber& fiber) {
  auto* const frame = reinterpret_cast<void**>(fiber.stack->top) - 1;
  *frame = nullptr;
  fiber.registers[0] = reinterpret_cast<void*>(run);
  fiber.registers[1] = frame;
  fiber.registers[2] = nullptr;
}
}  // namespace

#else

namespace {
void hipsim_switch_stack(Place place, Choose choose) {
  Fiber* const from = current();
  Fiber* const to = choose(place);
  if (to == from) return;
  const auto back = boost::context::detail::jump_fcontext(to->registers[0], from);
  static_cast<Fiber*>(back.data)->registers[0] = back.fctx;
}

void run_first(boost::context::detail::transfer_t from) {
  static_cast<Fiber*>(from.data)->registers[0] = from.fctx;
  run();
}
void begin(Fiber& fiber) {
  const auto size = static_cast<std::size_t>(fiber.stack->top - static_cast<const char*>(fiber.stack->low));
  fiber.registers[0] = boost::context::detail::make_fcontext(fiber.stack->top, size, run_first);
}
}  // namespace

void hipsim_walk_on(Place place) { hipsim_switch_stack(place, hipsim_walk.choose); }

#endif

void stop(Place place, Choose choose) {
  if (!watch::has_address_sanitizer()) return hipsim_switch_stack(place, choose);
  Fiber* const self = left = current();
  hipsim_switch_stack(place, choose);
  // Nobody may have been chosen but this fiber itself.
  if (left != self) tell_where_we_are();
}

void leave(Fiber** to) {
  only_goal = to;
  stop({}, [](Place) { return go_on_with(only_goal); });
  __builtin_unreachable();
}

void switch_to(Fiber& to) {
  only_turn = &to;
  stop({}, [](Place) {
    hipsim_walk.last = &only_turn;
    return go_on_with(&only_turn);
  });
}

// ---- fibers ---------------------------------------------------------------------------------------------------------

bool make(Fiber& fiber, void (*work)(), void (*rest)()) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* const mapping = mmap(nullptr, guard_size + stack_size, PROT_NONE, flags, -1, 0);
  if (mapping == MAP_FAILED) return false;
  auto* const low = static_cast<char*>(mapping) + guard_size;
  if (mprotect(low, stack_size, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, guard_size + stack_size);
    return false;
  }
  static std::size_t colour = 0;
  fiber.stack = new Stack{low, stack_size, nullptr, low + stack_size - colour++ * colour_size % page, stack_size};
  begin(fiber);
  steps[0] = work;
  steps[1] = rest;
  return true;
}

void forget_frames_below(void* frame) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Stack& stack = *current()->stack;
  auto* const low = const_cast<char*>(static_cast<const char*>(stack.low));
  // The pages below the deepest so far that have come into being since.
  unsigned char is_there[stack_size / 4096];
  // Not `mincore`: ThreadSanitizer would take what it writes for a thread's doing.
  const bool is_known = syscall(SYS_mincore, low, stack.untouched, is_there) == 0;
  std::size_t first = 0;
  while (is_known && first < stack.untouched / page && (is_there[first] & 1) == 0) ++first;
  stack.untouched = first * page;
  char* const used = low + stack.untouched;
  if (used < frame) watch::forget(used, static_cast<std::size_t>(static_cast<char*>(frame) - used));
}

void restart(Fiber& fiber) {
  // Frames that were left in the middle have their guards still up.
  watch::unpoison(fiber.stack->low, fiber.stack->size);
  begin(fiber);
}

}  // namespace hipsim::fibers
