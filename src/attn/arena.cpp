#include "attn/arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTN_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ATTN_ADDRESS_SANITIZER
#endif

// ATTN_ARENA_CANARIES: guards as in a build without AddressSanitizer, so that they can be tested in one with it.
#if defined(ATTN_ARENA_CANARIES) || (defined(ATTN_GUARD_ARENA) && !defined(ATTN_ADDRESS_SANITIZER))
#define ATTN_CANARIES
#elif defined(ATTN_ADDRESS_SANITIZER)
#define ATTN_POISON
#include <sanitizer/asan_interface.h>
#endif
#if defined(ATTN_CANARIES) || defined(ATTN_POISON)
#define ATTN_GUARDED
#include <malloc.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#endif

namespace attn {
namespace {

constexpr std::size_t alignment = 64;  // a cache line, and the widest vector store

std::size_t aligned(std::size_t size) noexcept { return (size + alignment - 1) / alignment * alignment; }

// ---- guards ---------------------------------------------------------------------------------------------------------

#ifdef ATTN_GUARDED
/// In front of each array, aligned as it is; with canaries, its first bytes are the array's size.
constexpr std::size_t head = alignment;
/// Bytes of a slot that are not the array's: the head, at most `alignment` - 1 in front of it, and a tail. The same for
/// each, so that one byte more or less in an array is one more or less in the sum.
constexpr std::size_t guard = head + 2 * alignment;

/// A library that counts its arrays wrong has no error to return.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("attn::Arena: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  std::abort();
}
#else
constexpr std::size_t head = 0;
constexpr std::size_t guard = 0;
#endif

/// Bytes of the slot of an array of `bytes`.
std::size_t slot_size(std::size_t bytes) noexcept { return guard > 0 ? bytes + guard : aligned(bytes); }
/// Where the array of a slot begins, in the block.
std::size_t array_in(std::size_t slot) noexcept { return aligned(slot) + head; }

#ifdef ATTN_CANARIES
/// What the bytes around an array hold.
constexpr auto canary = [] {
  std::array<unsigned char, guard> bytes{};
  for (unsigned char& byte : bytes) byte = 0xc5;
  return bytes;
}();

void close_all(std::byte*, std::size_t) noexcept {}
void open_all(std::byte*, std::size_t) noexcept {}

void open_array(std::byte* block, std::size_t slot, std::size_t bytes) noexcept {
  std::byte* const array = block + array_in(slot);
  std::memcpy(array - head, canary.data(), head);
  std::memcpy(array - head, &bytes, sizeof bytes);
  std::memcpy(array + bytes, canary.data(), slot + slot_size(bytes) - array_in(slot) - bytes);
}

/// The bytes around the arrays of the slots in [0, end) are as they were.
void check_guards(const std::byte* block, std::size_t end) noexcept {
  std::size_t index = 0;
  for (std::size_t slot = 0; slot + guard <= end; ++index) {
    const std::byte* const array = block + array_in(slot);
    std::size_t bytes = 0;
    std::memcpy(&bytes, array - head, sizeof bytes);
    const std::byte* const head_canary = array - head + sizeof bytes;
    if (std::memcmp(head_canary, canary.data(), head - sizeof bytes) != 0 || bytes > end - slot - guard)
      fail("the bytes in front of array %zu were written", index);
    const std::size_t next = slot + slot_size(bytes);
    if (std::memcmp(array + bytes, canary.data(), next - array_in(slot) - bytes) != 0)
      fail("the bytes behind array %zu, of %zu bytes, were written", index, bytes);
    slot = next;
  }
}
#elif defined(ATTN_POISON)
void close_all(std::byte* block, std::size_t size) noexcept { __asan_poison_memory_region(block, size); }
void open_all(std::byte* block, std::size_t size) noexcept { __asan_unpoison_memory_region(block, size); }
void open_array(std::byte* block, std::size_t slot, std::size_t bytes) noexcept {
  __asan_unpoison_memory_region(block + array_in(slot), bytes);
}
void check_guards(const std::byte*, std::size_t) noexcept {}
#else
void close_all(std::byte*, std::size_t) noexcept {}
void open_all(std::byte*, std::size_t) noexcept {}
void open_array(std::byte*, std::size_t, std::size_t) noexcept {}
#endif

}  // namespace

// ---- the arena ------------------------------------------------------------------------------------------------------

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(block_, other.block_);
  std::swap(size_, other.size_);
  std::swap(asked_, other.asked_);
  std::swap(used_, other.used_);
  std::swap(num_arrays_, other.num_arrays_);
  return *this;
}

Arena::~Arena() {
  check_arrays();
  open_all(block_.get(), size_);
}

void Arena::Free::operator()(std::byte* block) const noexcept { std::free(block); }

std::int64_t Arena::padded(std::int64_t bytes) noexcept {
  return static_cast<std::int64_t>(slot_size(static_cast<std::size_t>(bytes)));
}

bool Arena::reset(std::int64_t bytes) noexcept {
  check_arrays();
  const auto needed = static_cast<std::size_t>(bytes);
  if (needed > size_) {
    // Half as much again, so that slowly growing batches do not allocate at every step.
    std::size_t size = std::max(needed, size_ + size_ / 2);
    std::unique_ptr<std::byte, Free> block{static_cast<std::byte*>(std::aligned_alloc(alignment, aligned(size)))};
    if (!block) {
      size = needed;
      block.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, aligned(size))));
    }
    if (!block) return false;
    open_all(block_.get(), size_);
    block_ = std::move(block);
    size_ = size;
  }
  asked_ = needed;
  used_ = 0;
  num_arrays_ = 0;
#ifdef ATTN_GUARDED
  if (asked_ > size_ || size_ > malloc_usable_size(block_.get()))
    fail("a block of %zu bytes, taken for one of %zu, where %zu are needed", malloc_usable_size(block_.get()), size_,
         asked_);
#endif
  close_all(block_.get(), size_);
  return true;
}

std::byte* Arena::take_bytes(std::int64_t bytes) noexcept {
  const auto size = static_cast<std::size_t>(bytes);
  const std::size_t slot = used_;
  used_ += slot_size(size);
#ifdef ATTN_GUARDED
  if (used_ > asked_)
    fail("array %zu, of %zu bytes, has no room: %zu are left of the %zu asked for (%zu an array are guards)",
         num_arrays_, size, asked_ - slot, asked_, guard);
  ++num_arrays_;
#endif
  open_array(block_.get(), slot, size);
  return block_.get() + array_in(slot);
}

/// What was asked for has been taken, to the byte, and nothing around the arrays was written.
void Arena::check_arrays() const noexcept {
#ifdef ATTN_GUARDED
  if (used_ != asked_) fail("%zu arrays took %zu bytes of the %zu asked for", num_arrays_, used_, asked_);
  check_guards(block_.get(), used_);
#endif
}

}  // namespace attn
