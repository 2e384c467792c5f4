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
#ifdef ATTN_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace attn {
namespace {

constexpr std::int64_t alignment = 64;  // a cache line, and the widest vector store

#ifdef ATTN_ADDRESS_SANITIZER
constexpr std::int64_t gap = alignment;
void poison(const std::byte* at, std::size_t size) noexcept { __asan_poison_memory_region(at, size); }
void unpoison(const std::byte* at, std::size_t size) noexcept { __asan_unpoison_memory_region(at, size); }
#else
constexpr std::int64_t gap = 0;
void poison(const std::byte*, std::size_t) noexcept {}
void unpoison(const std::byte*, std::size_t) noexcept {}
#endif

std::size_t aligned(std::size_t size) noexcept { return (size + alignment - 1) / alignment * alignment; }

}  // namespace

Arena::Arena(Arena&& other) noexcept
    : block_(std::move(other.block_)), size_(std::exchange(other.size_, 0)), used_(std::exchange(other.used_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(block_, other.block_);
  std::swap(size_, other.size_);
  std::swap(used_, other.used_);
  return *this;
}

Arena::~Arena() { unpoison(block_.get(), size_); }

void Arena::Free::operator()(std::byte* block) const noexcept { std::free(block); }

std::int64_t Arena::padded(std::int64_t bytes) noexcept {
  return static_cast<std::int64_t>(aligned(static_cast<std::size_t>(bytes))) + gap;
}

bool Arena::reset(std::int64_t bytes) noexcept {
  const auto needed = static_cast<std::size_t>(bytes);
  if (needed > size_) {
    // Half as much again, so that slowly growing batches do not allocate at every step.
    std::size_t size = aligned(std::max(needed, size_ + size_ / 2));
    std::unique_ptr<std::byte, Free> block{static_cast<std::byte*>(std::aligned_alloc(alignment, size))};
    if (!block) {
      size = aligned(needed);
      block.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
    }
    if (!block) return false;
    unpoison(block_.get(), size_);
    block_ = std::move(block);
    size_ = size;
  }
  used_ = 0;
  poison(block_.get(), size_);
  return true;
}

std::byte* Arena::take_bytes(std::int64_t bytes) noexcept {
  std::byte* const at = block_.get() + used_;
  used_ += static_cast<std::size_t>(padded(bytes));
  unpoison(at, static_cast<std::size_t>(bytes));
  return at;
}

}  // namespace attn
