#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace attn {

/// One growing block of memory from which a build takes its arrays, in order. It never shrinks, so that a warm
/// builder allocates nothing, and is never cleared, so that a build costs what it writes.
///
/// In a library built with AddressSanitizer only the arrays handed out since the last `reset` may be touched, each to
/// its exact size: what an earlier build left behind, and the gaps in between, are poisoned.
class Arena {
 public:
  Arena() noexcept = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  /// Bytes that `take<T>(count)` uses up, gap and alignment included.
  template <class T>
  static std::int64_t bytes_for(std::int64_t count) noexcept {
    return padded(count * static_cast<std::int64_t>(sizeof(T)));
  }

  /// Makes room for `bytes` in all and forgets every array handed out. False when there is no memory; then the
  /// arrays stay as they were.
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

  std::unique_ptr<std::byte, Free> block_;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace attn
