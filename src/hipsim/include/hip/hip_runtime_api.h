#pragma once

// The host side of HIP as hipsim has it: a subset, complete for what is declared. What is missing does not compile.

#include "hipsim/place.hpp"

#include <cstddef>
#include <cstdint>

// ---- errors ---------------------------------------------------------------------------------------------------------

/// X(name, number, text): the errors this runtime can answer with, and those one may want to inject.
#define HIPSIM_ERRORS(X)                                                                                               \
  X(hipSuccess, 0, "no error")                                                                                         \
  X(hipErrorInvalidValue, 1, "invalid argument")                                                                       \
  X(hipErrorOutOfMemory, 2, "out of memory")                                                                           \
  X(hipErrorNotInitialized, 3, "initialization error")                                                                 \
  X(hipErrorDeinitialized, 4, "driver shutting down")                                                                  \
  X(hipErrorInvalidConfiguration, 9, "invalid configuration argument")                                                 \
  X(hipErrorInvalidDevicePointer, 17, "invalid device pointer")                                                        \
  X(hipErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                           \
  X(hipErrorInsufficientDriver, 35, "driver version is insufficient for runtime version")                              \
  X(hipErrorInvalidDeviceFunction, 98, "invalid device function")                                                      \
  X(hipErrorNoDevice, 100, "no ROCm-capable device is detected")                                                       \
  X(hipErrorInvalidDevice, 101, "invalid device ordinal")                                                              \
  X(hipErrorInvalidContext, 201, "invalid device context")                                                             \
  X(hipErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device")                           \
  X(hipErrorInvalidHandle, 400, "invalid resource handle")                                                             \
  X(hipErrorIllegalState, 401, "the operation cannot be performed in the present state")                               \
  X(hipErrorNotReady, 600, "device not ready")                                                                         \
  X(hipErrorIllegalAddress, 700, "an illegal memory access was encountered")                                           \
  X(hipErrorLaunchOutOfResources, 701, "too many resources requested for launch")                                      \
  X(hipErrorLaunchTimeOut, 702, "the launch timed out and was terminated")                                             \
  X(hipErrorLaunchFailure, 719, "unspecified launch failure")                                                          \
  X(hipErrorNotSupported, 801, "operation not supported")                                                              \
  X(hipErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")                         \
  X(hipErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")                  \
  X(hipErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences")                \
  X(hipErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")                       \
  X(hipErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                                          \
  X(hipErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")                    \
  X(hipErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing stream")         \
  X(hipErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream")             \
  X(hipErrorStreamCaptureWrongThread, 908, "attempt to terminate a thread-local capture sequence from another thread") \
  X(hipErrorGraphExecUpdateFailure, 910,                                                                               \
    "the graph update was not performed because it included changes which violated constraints")                       \
  X(hipErrorUnknown, 999, "unknown error")

enum hipError_t {
#define HIPSIM_ERROR(name, number, text) name = number,
  HIPSIM_ERRORS(HIPSIM_ERROR)
#undef HIPSIM_ERROR
      hipErrorInvalidResourceHandle = hipErrorInvalidHandle,
};

const char* hipGetErrorName(hipError_t error);
const char* hipGetErrorString(hipError_t error);
/// The last error of any call, and hipSuccess from then on. Launches report here.
hipError_t hipGetLastError();
hipError_t hipPeekAtLastError();

// ---- devices --------------------------------------------------------------------------------------------------------

struct hipDeviceProp_t {
  char name[256];
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int multiProcessorCount;
  int major;
  int minor;
  char gcnArchName[256];
};

enum hipDeviceAttribute_t {
  hipDeviceAttributeMaxThreadsPerBlock,
  hipDeviceAttributeMaxSharedMemoryPerBlock,
  hipDeviceAttributeMultiprocessorCount,
  hipDeviceAttributeWarpSize,
};

hipError_t hipInit(unsigned int flags, HIPSIM_PLACE);
hipError_t hipRuntimeGetVersion(int* version, HIPSIM_PLACE);
hipError_t hipDriverGetVersion(int* version, HIPSIM_PLACE);
hipError_t hipGetDeviceCount(int* count, HIPSIM_PLACE);
hipError_t hipGetDevice(int* device, HIPSIM_PLACE);
hipError_t hipSetDevice(int device, HIPSIM_PLACE);
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device, HIPSIM_PLACE);
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device, HIPSIM_PLACE);
hipError_t hipDeviceSynchronize(HIPSIM_PLACE);
/// Ends everything; what was not freed is reported as a leak.
hipError_t hipDeviceReset(HIPSIM_PLACE);

// ---- memory ---------------------------------------------------------------------------------------------------------

enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
};

inline constexpr unsigned int hipHostMallocDefault = 0x0;
inline constexpr unsigned int hipHostMallocPortable = 0x1;
inline constexpr unsigned int hipHostMallocMapped = 0x2;
inline constexpr unsigned int hipHostMallocWriteCombined = 0x4;
inline constexpr unsigned int hipMemAttachGlobal = 0x1;

hipError_t hipMalloc(void** pointer, std::size_t size, HIPSIM_PLACE);
hipError_t hipFree(void* pointer, HIPSIM_PLACE);
/// Pinned: copies to and from it are asynchronous, and kernels may touch it.
hipError_t hipHostMalloc(void** pointer, std::size_t size, unsigned int flags = hipHostMallocDefault, HIPSIM_PLACE);
hipError_t hipHostFree(void* pointer, HIPSIM_PLACE);
/// Refused with hipErrorNotSupported: what is mapped where, and when, is a question of the card.
hipError_t hipMallocManaged(void** pointer, std::size_t size, unsigned int flags = hipMemAttachGlobal, HIPSIM_PLACE);
hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total, HIPSIM_PLACE);

template <class T>
hipError_t hipMalloc(T** pointer, std::size_t size, HIPSIM_PLACE) {
  return hipMalloc(reinterpret_cast<void**>(pointer), size, place);
}
template <class T>
hipError_t hipHostMalloc(T** pointer, std::size_t size, unsigned int flags = hipHostMallocDefault, HIPSIM_PLACE) {
  return hipHostMalloc(reinterpret_cast<void**>(pointer), size, flags, place);
}
template <class T>
hipError_t hipMallocManaged(T** pointer, std::size_t size, unsigned int flags = hipMemAttachGlobal, HIPSIM_PLACE) {
  return hipMallocManaged(reinterpret_cast<void**>(pointer), size, flags, place);
}

struct ihipStream_t;
struct ihipEvent_t;
struct ihipGraph;
struct hipGraphExec;
struct hipGraphNode;
using hipStream_t = ihipStream_t*;
using hipEvent_t = ihipEvent_t*;
using hipGraph_t = ihipGraph*;
using hipGraphExec_t = hipGraphExec*;
using hipGraphNode_t = hipGraphNode*;

hipError_t hipMemcpy(void* to, const void* from, std::size_t size, hipMemcpyKind kind, HIPSIM_PLACE);
hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t size, hipMemcpyKind kind,
                          hipStream_t stream = nullptr, HIPSIM_PLACE);
hipError_t hipMemset(void* to, int value, std::size_t size, HIPSIM_PLACE);
hipError_t hipMemsetAsync(void* to, int value, std::size_t size, hipStream_t stream = nullptr, HIPSIM_PLACE);

// ---- streams and events ---------------------------------------------------------------------------------------------

inline constexpr unsigned int hipStreamDefault = 0x0;
inline constexpr unsigned int hipStreamNonBlocking = 0x1;  ///< does not wait for the null stream, nor it for this one
inline constexpr unsigned int hipEventDefault = 0x0;
inline constexpr unsigned int hipEventBlockingSync = 0x1;
inline constexpr unsigned int hipEventDisableTiming = 0x2;

using hipHostFn_t = void (*)(void* data);

hipError_t hipStreamCreate(hipStream_t* stream, HIPSIM_PLACE);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags, HIPSIM_PLACE);
hipError_t hipStreamDestroy(hipStream_t stream, HIPSIM_PLACE);
hipError_t hipStreamSynchronize(hipStream_t stream, HIPSIM_PLACE);
hipError_t hipStreamQuery(hipStream_t stream, HIPSIM_PLACE);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags = 0, HIPSIM_PLACE);
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data, HIPSIM_PLACE);

hipError_t hipEventCreate(hipEvent_t* event, HIPSIM_PLACE);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags, HIPSIM_PLACE);
hipError_t hipEventDestroy(hipEvent_t event, HIPSIM_PLACE);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr, HIPSIM_PLACE);
hipError_t hipEventSynchronize(hipEvent_t event, HIPSIM_PLACE);
hipError_t hipEventQuery(hipEvent_t event, HIPSIM_PLACE);
/// Simulated time: every operation takes one microsecond.
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop, HIPSIM_PLACE);

// ---- graphs ---------------------------------------------------------------------------------------------------------

enum hipStreamCaptureMode {
  hipStreamCaptureModeGlobal = 0,
  hipStreamCaptureModeThreadLocal,
  hipStreamCaptureModeRelaxed,
};
enum hipStreamCaptureStatus {
  hipStreamCaptureStatusNone = 0,
  hipStreamCaptureStatusActive,
  hipStreamCaptureStatusInvalidated,
};
enum hipGraphExecUpdateResult {
  hipGraphExecUpdateSuccess = 0x0,
  hipGraphExecUpdateError = 0x1,
  hipGraphExecUpdateErrorTopologyChanged = 0x2,
  hipGraphExecUpdateErrorNodeTypeChanged = 0x3,
};

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode, HIPSIM_PLACE);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph, HIPSIM_PLACE);
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status, HIPSIM_PLACE);
hipError_t hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t* error_node, char* log,
                               std::size_t log_size, HIPSIM_PLACE);
hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream, HIPSIM_PLACE);
/// Gives `exec` the parameters of `graph`, which was captured anew and has the same nodes in the same order.
hipError_t hipGraphExecUpdate(hipGraphExec_t exec, hipGraph_t graph, hipGraphNode_t* error_node,
                              hipGraphExecUpdateResult* result, HIPSIM_PLACE);
/// The number of nodes, when `nodes` is null; else up to *count nodes.
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t* count, HIPSIM_PLACE);
hipError_t hipGraphDestroy(hipGraph_t graph, HIPSIM_PLACE);
hipError_t hipGraphExecDestroy(hipGraphExec_t exec, HIPSIM_PLACE);
