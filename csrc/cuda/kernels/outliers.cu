// Lists the few weights beyond 1.75 while loading. A GEMM adds them (gemm/epilogue.cuh).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/kernels/kernels.h"
#include "format.h"

namespace nestedfp::cuda {
namespace {

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

}  // namespace nestedfp::cuda
