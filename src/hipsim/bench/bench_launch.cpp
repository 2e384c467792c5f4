// How long a launch takes, from the call until the stream is empty. It compiles with any HIP runtime on the include
// path, so that two of them can be measured with the same source: nothing here names one.
#include <hip/hip_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t block_threads = 256;
constexpr std::uint32_t grid_blocks = 4;
constexpr int barriers = 17;
constexpr std::uint32_t shuffle_threads = 64;

/// Launches timed together, so that reading the clock does not count.
constexpr int launches_together = 20;
/// Enough for a steady median on a machine that others use as well.
constexpr int repeats = 501;

void must(hipError_t error, const char* what) {
  if (error == hipSuccess) return;
  std::fprintf(stderr, "bench_launch: %s: %s\n", what, hipGetErrorString(error));
  std::exit(2);
}

__global__ void plain(std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = i * 2654435761u;
}

/// Each barrier is needed: a thread reads what its neighbour wrote before.
__global__ void with_barriers(std::uint32_t* out) {
  __shared__ std::uint32_t values[2][block_threads];
  const std::uint32_t i = threadIdx.x;
  values[0][i] = i;
  __syncthreads();
  for (int pass = 1; pass < barriers; ++pass) {
    values[pass % 2][i] = values[(pass + 1) % 2][(i + 1) % block_threads] + 1;
    __syncthreads();
  }
  out[i] = values[(barriers + 1) % 2][i];
}

/// Sums over 32 lanes in five steps, whatever the size of a warp. Without a loop, in which hipsim would want the kernel
/// to tell its blocks, and the other kernels with it.
__global__ void with_shuffles(std::uint32_t* out) {
  std::uint32_t sum = threadIdx.x;
  sum += __shfl_xor(sum, 16);
  sum += __shfl_xor(sum, 8);
  sum += __shfl_xor(sum, 4);
  sum += __shfl_xor(sum, 2);
  sum += __shfl_xor(sum, 1);
  out[threadIdx.x] = sum;
}

/// `queue` launches once. Each kernel is launched by its own name, which lets a runtime compile it into its loop.
template <class Queue>
double median_us(hipStream_t stream, Queue queue) {
  const auto launch = [&] {
    queue();
    must(hipStreamSynchronize(stream), "hipStreamSynchronize");
  };
  for (int i = 0; i < launches_together; ++i) launch();
  must(hipGetLastError(), "launch");
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < launches_together; ++i) launch();
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    times.push_back(taken.count() / launches_together);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

/// A runtime that leaves work out would look fast.
void check(const char* what, const std::uint32_t* out, std::size_t at, std::uint32_t wanted) {
  std::uint32_t got = 0;
  must(hipMemcpy(&got, out + at, sizeof got, hipMemcpyDeviceToHost), "hipMemcpy");
  if (got == wanted) return;
  std::fprintf(stderr, "bench_launch: %s: out[%zu] is %u instead of %u\n", what, at, got, wanted);
  std::exit(1);
}

void measure(hipStream_t stream) {
  std::uint32_t* out = nullptr;
  must(hipMalloc(&out, grid_blocks * block_threads * sizeof *out), "hipMalloc");
  const double plain_us =
      median_us(stream, [&] { hipLaunchKernelGGL(plain, dim3(grid_blocks), dim3(block_threads), 0, stream, out); });
  check("plain", out, grid_blocks * block_threads - 1, (grid_blocks * block_threads - 1) * 2654435761u);
  const double barriers_us =
      median_us(stream, [&] { hipLaunchKernelGGL(with_barriers, dim3(1), dim3(block_threads), 0, stream, out); });
  check("barriers", out, 5, 5 + 2 * (barriers - 1));
  const double shuffles_us =
      median_us(stream, [&] { hipLaunchKernelGGL(with_shuffles, dim3(1), dim3(shuffle_threads), 0, stream, out); });
  check("shuffles", out, shuffle_threads - 1, (32 + 63) * 16);
  std::printf("%-44s %8.2f us\n", "4 blocks x 256 threads, no barrier", plain_us);
  std::printf("%-44s %8.2f us\n", "1 block x 256 threads, 17 barriers", barriers_us);
  std::printf("%-44s %8.2f us\n", "1 block x 64 threads, 5 shuffles", shuffles_us);
  must(hipFree(out), "hipFree");
}

}  // namespace

int main() {
  hipDeviceProp_t properties{};
  must(hipGetDeviceProperties(&properties, 0), "hipGetDeviceProperties");
  std::printf("%-44s %s\n", "runtime", properties.name);
  hipStream_t stream = nullptr;
  must(hipStreamCreate(&stream), "hipStreamCreate");
  measure(stream);
  must(hipStreamDestroy(stream), "hipStreamDestroy");
  return 0;
}
