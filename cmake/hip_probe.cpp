// What a compiler has to be able to do to build src/attn/device for a GPU: compile a kernel, with the device's library
// behind it, and its launch.
#include <hip/hip_runtime.h>

__global__ void count_positive(const int* values, int* counts) {
  const unsigned long long votes = __ballot(values[threadIdx.x] > 0);
  if (threadIdx.x % static_cast<unsigned>(warpSize) == 0) atomicAdd(&counts[blockIdx.x], __popcll(votes));
}

hipError_t launch(const int* values, int* counts, hipStream_t stream);
hipError_t launch(const int* values, int* counts, hipStream_t stream) {
  hipLaunchKernelGGL(count_positive, dim3(1), dim3(256), 0, stream, values, counts);
  return hipGetLastError();
}
