#include "watch.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

extern "C" {
// Weak, as those in the header.
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* at, std::size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* at, std::size_t size);
__attribute__((weak)) void* __asan_region_is_poisoned(void* at, std::size_t size);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake, const void* low, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake, const void** low, std::size_t* size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_set_fiber_name(void* fiber, const char* name);
__attribute__((weak)) void __tsan_acquire(void* order);
__attribute__((weak)) void __tsan_release(void* order);
__attribute__((weak)) void __sanitizer_symbolize_pc(void* at, const char* format, char* out, std::size_t size);
// Made for managed heaps: the only calls that make ThreadSanitizer forget who touched a range.
__attribute__((weak)) void __tsan_java_init(std::uintptr_t heap, std::uintptr_t size);
__attribute__((weak)) void __tsan_java_alloc(std::uintptr_t at, std::uintptr_t size);
__attribute__((weak)) void __tsan_java_free(std::uintptr_t at, std::uintptr_t size);
}

namespace hipsim::watch {
namespace {

constexpr unsigned without_order = 1;  // __tsan_switch_to_fiber_no_sync

/// ThreadSanitizer has 256 places for threads, one of them its own. With more threads than places they take each
/// other's, and most races are lost without a word.
constexpr int max_strands = 250;

int num_strands = 1;

/// Says once that there are too many.
void notice_strands() {
  static bool is_noticed = false;
  if (num_strands <= max_strands || std::exchange(is_noticed, true)) return;
  std::fprintf(
      stderr,
      "hipsim: more than %d streams, queued graph nodes and GPU threads at a time: ThreadSanitizer cannot keep "
      "them apart and will miss races\n",
      max_strands);
}

}  // namespace

void poison(const void* at, std::size_t size) {
  if (has_address_sanitizer()) __asan_poison_memory_region(at, size);
}
void unpoison(const void* at, std::size_t size) {
  if (has_address_sanitizer()) __asan_unpoison_memory_region(at, size);
}
bool is_poisoned(const void* at, std::size_t size) {
  return has_address_sanitizer() && size > 0 && __asan_region_is_poisoned(const_cast<void*>(at), size) != nullptr;
}

bool is_gone(const void* at, std::size_t size) {
  if (!has_address_sanitizer() || size == 0) return false;
  std::size_t scale = 0;
  std::size_t offset = 0;
  __asan_get_shadow_mapping(&scale, &offset);
  const auto shadow = [&](std::uintptr_t address) {
    return *reinterpret_cast<const unsigned char*>((address >> scale) + offset);
  };
  constexpr unsigned char by_hand = 0xf7;  // what __asan_poison_memory_region leaves
  constexpr unsigned char partly = 7;      // up to it: so many first bytes of a granule may be touched, 0 for all
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t granule = std::uintptr_t{1} << scale;
  for (std::uintptr_t address = first & ~(granule - 1); address < first + size; address += granule) {
    const unsigned char value = shadow(address);
    const bool is_short = value > 0 && value <= partly && first + size - address > value;
    if (is_short || (value > partly && value != by_hand)) return true;
  }
  return false;
}

std::string place_of_code(const void* at) {
  char text[1024] = {};
  // It is made for addresses that calls return to.
  if (__sanitizer_symbolize_pc != nullptr)
    __sanitizer_symbolize_pc(const_cast<char*>(static_cast<const char*>(at)) + 1, "in %f %s:%l", text, sizeof text);
  const bool is_known = text[0] != '\0' && std::strstr(text, ":0") == nullptr && std::strstr(text, "??") == nullptr &&
                        std::strstr(text, "<null>") == nullptr;
  if (is_known) return text;
  Dl_info info{};
  if (dladdr(at, &info) == 0 || info.dli_fname == nullptr) return "at an unknown address";
  const auto offset = static_cast<const char*>(at) - static_cast<const char*>(info.dli_fbase);
  std::snprintf(text, sizeof text, "at %s+0x%tx%s%s", info.dli_fname, offset, info.dli_sname != nullptr ? " in " : "",
                info.dli_sname != nullptr ? info.dli_sname : "");
  return text;
}

void leave_stack(void** fake, const void* low, std::size_t size) {
  if (has_address_sanitizer()) __sanitizer_start_switch_fiber(fake, low, size);
}
void arrive_on_stack(void* fake, const void** left_low, std::size_t* left_size) {
  if (has_address_sanitizer()) __sanitizer_finish_switch_fiber(fake, left_low, left_size);
}

Strand current_strand() { return has_thread_sanitizer() ? __tsan_get_current_fiber() : nullptr; }
Strand make_strand(const char* name) {
  if (!has_thread_sanitizer()) return nullptr;
  ++num_strands;
  notice_strands();
  const Strand strand = __tsan_create_fiber(0);
  __tsan_set_fiber_name(strand, name);
  return strand;
}
void end_strand(Strand strand) {
  if (strand == nullptr) return;
  --num_strands;
  __tsan_destroy_fiber(strand);
}
void become(Strand strand) {
  if (has_thread_sanitizer()) __tsan_switch_to_fiber(strand, without_order);
}
void release(void* order) {
  if (has_thread_sanitizer()) __tsan_release(order);
}
void acquire(void* order) {
  if (has_thread_sanitizer()) __tsan_acquire(order);
}

void forget(void* at, std::size_t size) {
  if (!has_thread_sanitizer() || __tsan_java_alloc == nullptr || size == 0) return;
  // It works on whole words of eight bytes.
  const auto begin = reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{7};
  const auto end = (reinterpret_cast<std::uintptr_t>(at) + size + 7) & ~std::uintptr_t{7};
  static const bool ready = (__tsan_java_init(begin, end - begin), true);
  static_cast<void>(ready);
  __tsan_java_free(begin, end - begin);
  __tsan_java_alloc(begin, end - begin);
}

}  // namespace hipsim::watch
