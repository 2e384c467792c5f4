#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTN_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ATTN_ADDRESS_SANITIZER 1
#endif
#ifdef ATTN_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace attn {

/// One growing block of memory from which a build takes its arrays, in order. It never shrinks, so that a warm
/// builder allocates nothing, and is never cleared, so that a build costs what it writes.
///
/// Under AddressSanitizer only the arrays handed out since the last `reset` may be touched, each to its exact
/// size: what an earlier build left behind, and the gaps in between, are poisoned.
class Arena {
 public:
  Arena() noexcept = default;
  Arena(Arena&& other) noexcept : block_(std::move(other.block_)), size_(other.size_), used_(other.used_) {
    other.size_ = other.used_ = 0;
  }
  Arena& operator=(Arena&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    std::swap(used_, other.used_);
    return *this;
  }
  ~Arena() { unpoison_all(); }

  /// Bytes that `take<T>(count)` uses up, gap and alignment included.
  template <class T>
  static constexpr std::int64_t bytes_for(std::int64_t count) noexcept {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    return (bytes + alignment - 1) / alignment * alignment + gap;
  }

  /// Makes room for `bytes` in all and forgets every array handed out. False when there is no memory; then the
  /// arrays stay as they were.
  [[nodiscard]] bool reset(std::int64_t bytes) noexcept {
    const auto needed = static_cast<std::size_t>(bytes);
    if (needed > size_) {
      // Half as much again, so that slowly growing batches do not allocate at every step.
      const std::size_t size = (std::max(needed, size_ + size_ / 2) + alignment - 1) / alignment * alignment;
      Block block{static_cast<std::byte*>(std::aligned_alloc(alignment, size))};
      if (!block) return false;
      unpoison_all();
      block_ = std::move(block);
      size_ = size;
    }
    used_ = 0;
    poison_all();
    return true;
  }

  /// An array of `count` elements with whatever the memory holds. `reset` has made room for it.
  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) noexcept {
    std::byte* at = block_.get() + used_;
    used_ += static_cast<std::size_t>(bytes_for<T>(count));
#ifdef ATTN_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(at, static_cast<std::size_t>(count) * sizeof(T));
#endif
    return {reinterpret_cast<T*>(at), static_cast<std::size_t>(count)};
  }

 private:
  struct Free {
    void operator()(std::byte* block) const noexcept { std::free(block); }
  };
  using Block = std::unique_ptr<std::byte, Free>;

  static constexpr std::int64_t alignment = 64;  // a cache line, and the widest vector store
#ifdef ATTN_ADDRESS_SANITIZER
  static constexpr std::int64_t gap = alignment;
  void poison_all() noexcept { __asan_poison_memory_region(block_.get(), size_); }
  void unpoison_all() noexcept { __asan_unpoison_memory_region(block_.get(), size_); }
#else
  static constexpr std::int64_t gap = 0;
  void poison_all() noexcept {}
  void unpoison_all() noexcept {}
#endif

  Block block_;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace attn
