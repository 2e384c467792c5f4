#pragma once

#include <cstddef>
#include <string>

// Weak: there when the program is linked with the sanitizer. Of AddressSanitizer's it is the one that nobody else
// defines: AFL++ has substitutes of its own for those that poison.
extern "C" {
__attribute__((weak)) void __asan_get_shadow_mapping(std::size_t* scale, std::size_t* offset);
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
}

/// What the runtime tells AddressSanitizer and ThreadSanitizer. Which of them the program has is found out at run time,
/// so that the runtime itself needs no special build; without them every function does nothing.
namespace hipsim::watch {

[[nodiscard]] inline bool has_address_sanitizer() { return __asan_get_shadow_mapping != nullptr; }
[[nodiscard]] inline bool has_thread_sanitizer() { return __tsan_create_fiber != nullptr; }

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Bytes that AddressSanitizer opens and closes together, but for the last ones.
inline constexpr std::size_t granule = 8;
void poison(const void* at, std::size_t size);
void unpoison(const void* at, std::size_t size);
/// Whether a byte of the range must not be touched.
[[nodiscard]] bool is_poisoned(const void* at, std::size_t size);
/// Whether a byte of the range must not be touched for another reason than `poison`: it was freed, or never there.
[[nodiscard]] bool is_gone(const void* at, std::size_t size);

// ---- code -----------------------------------------------------------------------------------------------------------

/// "in function file:line" for an instruction, when the program's sanitizer knows; else "at program+0x1234", with the
/// function where it is known, for addr2line.
[[nodiscard]] std::string place_of_code(const void* at);

// ---- stacks ---------------------------------------------------------------------------------------------------------

/// Around a switch to the stack [low, low + size). `fake` keeps what AddressSanitizer wants back on return.
void leave_stack(void** fake, const void* low, std::size_t size);
/// Behind a switch, on the new stack. Tells where the stack left is.
void arrive_on_stack(void* fake, const void** left_low, std::size_t* left_size);

// ---- threads --------------------------------------------------------------------------------------------------------

/// A thread of execution as ThreadSanitizer sees it; null without.
using Strand = void*;
[[nodiscard]] Strand current_strand();
[[nodiscard]] Strand make_strand(const char* name);
void end_strand(Strand strand);
/// Goes on as `strand`, without an order between the two.
void become(Strand strand);
/// What came before a release of `order` by one strand comes before what follows an acquire by another.
void release(void* order);
void acquire(void* order);
/// Nobody has touched the range yet.
void forget(void* at, std::size_t size);

}  // namespace hipsim::watch
