#pragma once

namespace hipsim::traps {

/// Whether a kernel's code runs now, in this thread of the process, and not the runtime's: the linker may have given
/// the runtime a copy of an inline function that was instrumented as a kernel's.
extern constinit thread_local bool is_gpu_thread;

/// What is called in place of a division by zero in a GPU thread, on its stack; it does not come back. `at` is the
/// instruction that divides.
using OnDivision = void (*)(const void* at);

/// From now on a division by zero in a GPU thread calls `on_division`. Divisions elsewhere do what they did before: the
/// handler that the program had for SIGFPE is called, or the process ends. Does nothing while it is in place; it is
/// asked for each launch, and two system calls would be a third of the time that a small one takes.
void catch_divisions(OnDivision on_division);
/// The program may have set a handler of its own since: the next `catch_divisions` looks.
void look_again();

}  // namespace hipsim::traps
