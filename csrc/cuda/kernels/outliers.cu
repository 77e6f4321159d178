// The few weights beyond 1.75: listed while loading, and added after the GEMM: out[m, row] += sum of x[m, col] * delta.
// One warp owns a row's listed weights for one token, so sums have a fixed order and need no atomics.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/kernels/kernels.h"
#include "format.h"

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

NESTEDFP_HOST_DEVICE bool is_outlier(uint16_t w) { return is_finite(w) && !is_nestable(w); }

__global__ void __launch_bounds__(32) count_kernel(const uint16_t* weight, int64_t k, int32_t* row_counts) {
    const uint16_t* const row = weight + blockIdx.x * k;
    int count = 0;
    for (int64_t col = threadIdx.x; col < k; col += 32) count += is_outlier(row[col]);
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x == 0) row_counts[blockIdx.x] = count;
}

// Counts become the index of each row's first entry. One warp: N is some ten thousand, and this runs once per layer.
__global__ void __launch_bounds__(32) scan_kernel(int32_t* row_counts, int64_t n) {
    int32_t before = 0;
    for (int64_t first = 0; first < n; first += 32) {
        const int64_t row = first + threadIdx.x;
        const int32_t count = row < n ? row_counts[row] : 0;
        int32_t sum = count;
        for (int offset = 1; offset < 32; offset *= 2) {
            const int32_t other = __shfl_up_sync(~0u, sum, offset);
            if (threadIdx.x >= offset) sum += other;
        }
        if (row < n) row_counts[row] = before + sum - count;
        before += __shfl_sync(~0u, sum, 31);
    }
}

__global__ void __launch_bounds__(32) list_kernel(const uint16_t* weight, int64_t k, const int32_t* first_entry,
                                                  int64_t count, int32_t* rows, int32_t* cols, float* deltas) {
    const uint16_t* const row = weight + blockIdx.x * k;
    int64_t next = first_entry[blockIdx.x];
    for (int64_t first = 0; first < k; first += 32) {
        const int64_t col = first + threadIdx.x;
        const uint16_t w = col < k ? row[col] : 0;
        const unsigned found = __ballot_sync(~0u, is_outlier(w));
        const int64_t at = next + __popc(found & ((1u << threadIdx.x) - 1));
        if (is_outlier(w) && at < count) {
            rows[at] = static_cast<int32_t>(blockIdx.x);
            cols[at] = static_cast<int32_t>(col);
            deltas[at] = __half2float(__ushort_as_half(w)) - __half2float(__ushort_as_half(clamp_to_limit(w)));
        }
        next += __popc(found);
    }
}

}  // namespace

int run_list_outliers(const uint16_t* weight, int64_t n, int64_t k, int64_t count, int32_t* row_scratch, int32_t* rows,
                      int32_t* cols, float* deltas, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(n);
    count_kernel<<<blocks, 32, 0, stream>>>(weight, k, row_scratch);
    scan_kernel<<<1, 32, 0, stream>>>(row_scratch, n);
    list_kernel<<<blocks, 32, 0, stream>>>(weight, k, row_scratch, count, rows, cols, deltas);
    return cudaGetLastError();
}

int run_outliers(const void* x, int64_t x_pitch, const int32_t* rows, const int32_t* cols, const float* deltas,
                 int64_t count, void* out, int64_t m, int64_t n, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    const int64_t groups = (count + kWarps - 1) / kWarps;
    const dim3 grid(static_cast<unsigned>(groups < 1024 ? groups : 1024), static_cast<unsigned>(m < 64 ? m : 64));
    outlier_kernel<<<grid, 32 * kWarps, 0, stream>>>(static_cast<const __half*>(x), x_pitch, rows, cols, deltas, count,
                                                     static_cast<__half*>(out), m, n);
    return cudaGetLastError();
}

}  // namespace nestedfp::cuda
