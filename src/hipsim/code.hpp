#pragma once

#include <cstdint>
#include <span>

/// What the machine code of a kernel says about the order of its points: which of them a thread can still come to.
namespace hipsim::code {

/// Of an instruction. Points are known by the address a call returns to.
using Address = std::uintptr_t;

enum class Answer : std::uint8_t {
  no,
  yes,
  unknown,  ///< a jump through a table is on the way, or an instruction that is not known here
};

/// Whether a thread that goes on at `from` can come to `to` before its function returns, on a way that does not pass an
/// address in `without`. Calls on the way return, but for those that are known not to. `from` itself counts only when a
/// thread can come back to it. The function's code is read once; it must not change.
[[nodiscard]] Answer reaches(Address from, Address to, std::span<const Address> without);

/// Length in bytes of the instruction at `at`, 0 when it is not known here.
[[nodiscard]] unsigned length_of(const unsigned char* at);

}  // namespace hipsim::code
