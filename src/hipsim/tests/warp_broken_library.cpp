#include "warp_broken_library.hpp"

#include <hip/hip_runtime.h>

int count_without_options(int predicate) { return __popcll(__ballot(predicate)); }

#if defined(__x86_64__)
// The frame pointer is a register like any other, as in code compiled without frame pointers.
asm(R"(
  .text
  .globl _Z19call_without_framesPFiiEi
  .type _Z19call_without_framesPFiiEi, @function
_Z19call_without_framesPFiiEi:
  pushq %rbp
  movl %esi, %ebp
  movq %rdi, %rax
  movl %ebp, %edi
  call *%rax
  popq %rbp
  ret
  .size _Z19call_without_framesPFiiEi, . - _Z19call_without_framesPFiiEi
)");
#endif
