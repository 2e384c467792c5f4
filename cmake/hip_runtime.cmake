# Which HIP stands behind <hip/hip_runtime.h>: the target attn_hip. Whatever needs HIP links it and asks no further.
#
#   sim      src/hipsim, on the host, made for testing
#   amd      the real one: ROCm, or Debian's hipcc and libamdhip64-dev. CMAKE_CXX_COMPILER has to compile HIP: amdclang++,
#            or on Debian the clang++-N that hipcc depends on
#   include  any other implementation for the host: ATTNFUZZ_HIP_INCLUDE_DIR, ATTNFUZZ_HIP_LIBRARIES
#   none     no HIP: the CPU path alone
set(hip_default none)
if(ATTNFUZZ_HARNESS)
  set(hip_default sim)
endif()
set(ATTNFUZZ_HIP ${hip_default} CACHE STRING "The HIP runtime to build for: sim, amd, include or none")
set_property(CACHE ATTNFUZZ_HIP PROPERTY STRINGS sim amd include none)
set(ATTNFUZZ_GPU_TARGETS gfx90a gfx1030 CACHE STRING "amd: the GPUs that kernels are compiled for")
set(ATTNFUZZ_HIP_INCLUDE_DIR "" CACHE PATH "include: the folder that holds hip/hip_runtime.h")
set(ATTNFUZZ_HIP_LIBRARIES "" CACHE STRING "include: what else to link, for example Threads::Threads or a library's path")

add_library(attn_hip INTERFACE)
add_library(attn::hip ALIAS attn_hip)
# Its name, for people.
target_compile_definitions(attn_hip INTERFACE ATTNFUZZ_HIP_RUNTIME="${ATTNFUZZ_HIP}")
# The options that make HIP of a source with kernels; empty where kernels are ordinary functions.
set(ATTNFUZZ_HIP_KERNEL_OPTIONS "")

# The compiler may need to be told where ROCm is: it looks in /opt/rocm and beside itself, and Debian has it in /usr. Sets
# ATTNFUZZ_HIP_KERNEL_OPTIONS.
function(find_hip_kernel_options)
  get_filename_component(prefix "${hip_INCLUDE_DIR}" DIRECTORY)
  find_path(ATTNFUZZ_HIP_BITCODE_DIR ockl.bc HINTS ${prefix}
    PATH_SUFFIXES amdgcn/bitcode lib/amdgcn/bitcode lib/${CMAKE_CXX_LIBRARY_ARCHITECTURE}/amdgcn/bitcode)
  mark_as_advanced(ATTNFUZZ_HIP_BITCODE_DIR)
  list(TRANSFORM ATTNFUZZ_GPU_TARGETS PREPEND --offload-arch= OUTPUT_VARIABLE gpus)
  set(nothing "")
  set(rocm --rocm-path=${prefix})
  set(rocm_and_bitcode --rocm-path=${prefix} --rocm-device-lib-path=${ATTNFUZZ_HIP_BITCODE_DIR})
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  foreach(told IN ITEMS nothing rocm rocm_and_bitcode)
    if(told STREQUAL "rocm_and_bitcode" AND NOT ATTNFUZZ_HIP_BITCODE_DIR)
      break()
    endif()
    unset(works CACHE)
    try_compile(works ${PROJECT_BINARY_DIR}/hip_probe SOURCES ${PROJECT_SOURCE_DIR}/cmake/hip_probe.cpp
      COMPILE_DEFINITIONS -x hip ${gpus} ${${told}}
      LINK_LIBRARIES hip::host CXX_STANDARD ${CMAKE_CXX_STANDARD} CXX_STANDARD_REQUIRED ON OUTPUT_VARIABLE output)
    if(works)
      message(STATUS "Kernels are compiled with -x hip ${gpus} ${${told}}")
      set(ATTNFUZZ_HIP_KERNEL_OPTIONS -x hip ${gpus} ${${told}} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} does not compile HIP for ${ATTNFUZZ_GPU_TARGETS}. Set CMAKE_CXX_COMPILER to "
    "amdclang++, or on Debian to the clang++-N that hipcc depends on, and ATTNFUZZ_GPU_TARGETS to GPUs it knows:\n${output}")
endfunction()

if(ATTNFUZZ_HIP STREQUAL "sim")
  set(HIPSIM_TESTS ${ATTNFUZZ_TESTS})
  add_subdirectory(src/hipsim)
  target_link_libraries(attn_hip INTERFACE hipsim::hipsim)
elseif(ATTNFUZZ_HIP STREQUAL "amd")
  find_package(hip CONFIG REQUIRED HINTS ${ROCM_PATH} $ENV{ROCM_PATH} /opt/rocm)
  target_link_libraries(attn_hip INTERFACE hip::host)
  list(JOIN ATTNFUZZ_GPU_TARGETS " " gpu_targets)
  target_compile_definitions(attn_hip INTERFACE "ATTNFUZZ_HIP_GPU_TARGETS=\"${gpu_targets}\"")
  find_hip_kernel_options()
elseif(ATTNFUZZ_HIP STREQUAL "include")
  if(NOT EXISTS "${ATTNFUZZ_HIP_INCLUDE_DIR}/hip/hip_runtime.h")
    message(FATAL_ERROR "ATTNFUZZ_HIP=include: there is no hip/hip_runtime.h in ATTNFUZZ_HIP_INCLUDE_DIR, "
      "'${ATTNFUZZ_HIP_INCLUDE_DIR}'")
  endif()
  find_package(Threads)
  target_include_directories(attn_hip SYSTEM INTERFACE ${ATTNFUZZ_HIP_INCLUDE_DIR})
  target_link_libraries(attn_hip INTERFACE ${ATTNFUZZ_HIP_LIBRARIES})
elseif(ATTNFUZZ_HIP STREQUAL "none")
  target_compile_definitions(attn_hip INTERFACE ATTNFUZZ_HIP_NONE)
else()
  message(FATAL_ERROR "ATTNFUZZ_HIP is sim, amd, include or none, not '${ATTNFUZZ_HIP}'")
endif()
