include(CMakeFindDependencyMacro)
find_dependency(tl-expected)
include(${CMAKE_CURRENT_LIST_DIR}/attnTargets.cmake)
# Where the library was built for real HIP.
include(${CMAKE_CURRENT_LIST_DIR}/attnDeviceTargets.cmake OPTIONAL RESULT_VARIABLE attn_device_targets)
if(attn_device_targets)
  find_dependency(hip)
endif()
