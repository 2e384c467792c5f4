include(CheckCXXSourceCompiles)

set(HIPSIM_KEEP_CALLS_OPTIONS -fno-omit-frame-pointer -fno-optimize-sibling-calls)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND HIPSIM_KEEP_CALLS_OPTIONS
    # A call does not come to depend on other conditions than in the source, as copies of it would.
    "SHELL:-Xclang -fconvergent-functions"
    "SHELL:-mllvm -disable-tail-duplicate" "SHELL:-mllvm -disable-early-taildup" "SHELL:-mllvm -tail-dup-placement=0"
    # Two calls in two branches do not become one.
    "SHELL:-mllvm -simplifycfg-hoist-common=0" "SHELL:-mllvm -simplifycfg-sink-common=0"
    "SHELL:-mllvm -enable-tail-merge=0"
    # After a call that does not return comes a trap, and not whatever stands next.
    "SHELL:-mllvm -trap-unreachable")
else()
  list(APPEND HIPSIM_KEEP_CALLS_OPTIONS
    # The same for g++: no copies,
    -fno-thread-jumps -fno-tree-dominator-opts -fno-tree-vrp -fno-split-paths -fno-split-loops -fno-unswitch-loops
    -fno-version-loops-for-strides -fno-tracer -fno-reorder-blocks -fno-reorder-blocks-and-partition
    # and no two in one.
    -fno-crossjumping -fno-tree-tail-merge)
endif()

list(JOIN HIPSIM_KEEP_CALLS_OPTIONS " " CMAKE_REQUIRED_FLAGS)
string(REPLACE "SHELL:" "" CMAKE_REQUIRED_FLAGS "${CMAKE_REQUIRED_FLAGS}")
# Not linked: the linker would have no use for them, which some take for an error.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
check_cxx_source_compiles("int main() { return 0; }" HIPSIM_HAS_KEEP_CALLS_OPTIONS)
unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
unset(CMAKE_REQUIRED_FLAGS)

# Gives the users of a target the options, and the word that they have them: without it a warp operation is reported.
function(hipsim_keep_calls target)
  if(HIPSIM_HAS_KEEP_CALLS_OPTIONS)
    target_compile_options(${target} INTERFACE ${HIPSIM_KEEP_CALLS_OPTIONS})
    target_compile_definitions(${target} INTERFACE HIPSIM_KEEPS_CALLS=1)
  else()
    message(WARNING "hipsim: ${CMAKE_CXX_COMPILER} does not take the options that keep calls apart: every warp "
      "operation will be reported")
  endif()
endfunction()

# hipsim_trace_control_flow(target): the kernels of a target that links hipsim tell the blocks they come to. Warp
# operations in loops need that, Config::lockstep too, and the limit of steps in loops that call nothing of hipsim. With
# clang they tell each access to memory as well.
function(hipsim_trace_control_flow target)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -fsanitize-coverage=edge,no-prune,trace-pc,trace-loads,trace-stores)
  else()
    # A loop keeps its one entry, or its rounds cannot be told.
    target_compile_options(${target} PRIVATE -fsanitize-coverage=trace-pc -fno-tree-ch)
  endif()
  # A jump through a table does not say where it leads.
  target_compile_options(${target} PRIVATE -fno-jump-tables)
  target_compile_definitions(${target} PRIVATE HIPSIM_TRACES)
endfunction()
