// The few weights beyond 1.75, added after the GEMM: out[m, row] += sum of x[m, col] * delta. One warp owns a row's listed
// weights for one token, so sums have a fixed order and need no atomics.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels.h"

namespace nestedfp::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps)
    outlier_kernel(const __half* x, int64_t x_pitch, const int32_t* rows, const int32_t* cols, const float* deltas,
                   int64_t count, __half* out, int64_t m, int64_t n) {
    const int lane = threadIdx.x % 32;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; i < count;
         i += static_cast<int64_t>(gridDim.x) * kWarps) {
        const int32_t row = rows[i];
        if (i > 0 && rows[i - 1] == row) continue;  // the warp at the row's first entry does them all
        for (int64_t token = blockIdx.y; token < m; token += gridDim.y) {
            float sum = 0;
            bool goes_on = true;
            for (int64_t first = i; goes_on; first += 32) {
                const int64_t j = first + lane;
                const bool mine = j < count && rows[j] == row;
                if (mine) sum = fmaf(__half2float(x[token * x_pitch + cols[j]]), deltas[j], sum);
                goes_on = __all_sync(~0u, mine);
            }
            for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
            if (lane == 0) {
                __half* const to = out + token * n + row;
                *to = __float2half_rn(__half2float(*to) + sum);
            }
        }
    }
}

}  // namespace

int run_outliers(const void* x, int64_t x_pitch, const int32_t* rows, const int32_t* cols, const float* deltas, int64_t count,
                 void* out, int64_t m, int64_t n, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    const int64_t groups = (count + kWarps - 1) / kWarps;
    const dim3 grid(static_cast<unsigned>(groups < 1024 ? groups : 1024), static_cast<unsigned>(m < 64 ? m : 64));
    outlier_kernel<<<grid, 32 * kWarps, 0, stream>>>(static_cast<const __half*>(x), x_pitch, rows, cols, deltas, count,
                                                     static_cast<__half*>(out), m, n);
    return cudaGetLastError();
}

}  // namespace nestedfp::cuda
