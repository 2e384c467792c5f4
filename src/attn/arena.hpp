#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace attn {

/// One growing block of memory from which a build takes its arrays, in order. It never shrinks, so that a warm
/// builder allocates nothing, and is never cleared, so that a build costs what it writes.
///
/// A library built with AddressSanitizer, or with ATTN_GUARD_ARENA, has guarded arenas, which count every byte. They
/// end the process with a message when an array is taken that `reset` was not asked for, when something asked for is
/// not taken, and when the block is too small: by one byte, and also where a warm block is larger than needed. Each
/// array may be touched to its exact size only: AddressSanitizer reports any other access; without it the bytes around
/// an array are found changed at the next `reset`, or at the arena's end.
class Arena {
 public:
  Arena() noexcept = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  /// Bytes that `take<T>(count)` uses up, alignment and guards included.
  template <class T>
  static std::int64_t bytes_for(std::int64_t count) noexcept {
    return padded(count * static_cast<std::int64_t>(sizeof(T)));
  }

  /// Makes room for `bytes` in all, the sum of `bytes_for` of each array that will be taken, and forgets every array
  /// handed out. False when there is no memory; then the arrays stay as they were.
  [[nodiscard]] bool reset(std::int64_t bytes) noexcept;

  /// An array of `count` elements with whatever the memory holds. `reset` has made room for it.
  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) noexcept {
    return {reinterpret_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T)))),
            static_cast<std::size_t>(count)};
  }

 private:
  struct Free {
    void operator()(std::byte* block) const noexcept;
  };

  // Not in this header: what they do depends on how the library was built, not on how its caller is.
  static std::int64_t padded(std::int64_t bytes) noexcept;
  std::byte* take_bytes(std::int64_t bytes) noexcept;
  void check_arrays() const noexcept;

  std::unique_ptr<std::byte, Free> block_;
  std::size_t size_ = 0;   ///< of the block
  std::size_t asked_ = 0;  ///< of that, for the arrays of the last reset
  std::size_t used_ = 0;   ///< of that, for the arrays taken since
  std::size_t num_arrays_ = 0;
};

}  // namespace attn
