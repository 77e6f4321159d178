// Planes at load time, at memory speed: split FP16 words, permute canonical planes into the layout of the GEMM.
#include <cuda_runtime.h>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void split_kernel(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count,
                             unsigned long long* counts) {
    unsigned outliers = 0, nonfinite = 0;
    const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * 4;
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4; i < count; i += stride) {
        for (int64_t j = i; j < count && j < i + 4; ++j) {
            const uint16_t w = weight[j];
            if (!is_finite(w)) {
                ++nonfinite;
            } else if (!is_nestable(w)) {
                ++outliers;
            }
            const Nested nested = split(clamp_to_limit(w));
            upper[j] = nested.upper;
            lower[j] = nested.lower;
        }
    }
    outliers = __reduce_add_sync(~0u, outliers);
    nonfinite = __reduce_add_sync(~0u, nonfinite);
    if (threadIdx.x % 32 == 0) {
        if (outliers) atomicAdd(counts, outliers);
        if (nonfinite) atomicAdd(counts + 1, nonfinite);
    }
}

// One block per 64 x 64 weights; a thread moves 16 neighbouring bytes of each packed plane. Shared memory turns the
// permuted accesses into whole rows. Pitches of 80 keep 16-byte accesses aligned and spread over the banks.
constexpr int kPitch = 80;

__global__ void __launch_bounds__(kThreads) pack_kernel(const uint8_t* upper, const uint8_t* lower,
                                                        uint8_t* packed_upper, uint8_t* packed_lower, int n, int k) {
    __shared__ __align__(16) uint8_t rows[2][kBlockRows * kPitch];
    const int first_row = blockIdx.y * kBlockRows, first_col = blockIdx.x * kBlockCols;
    for (int i = threadIdx.x; i < kBlockRows * kBlockCols; i += kThreads) {
        const int row = i / kBlockCols, col = i % kBlockCols;
        const bool inside = first_row + row < n && first_col + col < k;
        const int64_t from = static_cast<int64_t>(first_row + row) * k + first_col + col;
        const uint8_t u = inside ? upper[from] : 0;
        const int position = position_of(col);
        rows[0][row * kPitch + position] = u;
        rows[1][row * kPitch + position] = encode_lower(inside ? lower[from] : 0, position);
    }
    __syncthreads();
    const int warp = threadIdx.x / 64, half = threadIdx.x / 32 % 2, lane = threadIdx.x % 32;
    const int row = warp * 16 + half * 8 + lane / 4;
    const int at = row * kPitch + lane % 4 * 16;
    const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    *reinterpret_cast<uint4*>(packed_lower + block * kBlockBytes + threadIdx.x * 16) =
        *reinterpret_cast<const uint4*>(&rows[1][at]);
    // The last column block of `lower` may be padding to 128 that `upper` does not have.
    if (first_row + row < n && first_col < upper_pitch(k)) {
        *reinterpret_cast<uint4*>(packed_upper + (first_row + row) * upper_pitch(k) + first_col + lane % 4 * 16) =
            *reinterpret_cast<const uint4*>(&rows[0][at]);
    }
}

__global__ void neutral_kernel(uint8_t* blocks) {
    for (int i = threadIdx.x; i < kNeutralBlocks * kBlockBytes; i += kThreads)
        blocks[i] = static_cast<uint8_t>(bias_of(i));
}

// Runs alone between the pack kernels and what follows: the GEMM starts to read weights before the kernel before it
// has finished, which is safe behind any kernel but the one that writes them.
__global__ void fence_kernel() {}

dim3 block_grid(int64_t n, int64_t k) {
    return dim3(static_cast<unsigned>(lower_col_blocks(k)), static_cast<unsigned>(lower_row_blocks(n)));
}

}  // namespace

int run_split(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count, unsigned long long* counts,
              cudaStream_t stream) {
    const int64_t blocks = (count + kThreads * 4 - 1) / (kThreads * 4);
    split_kernel<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), kThreads, 0, stream>>>(weight, upper, lower,
                                                                                                count, counts);
    return cudaGetLastError();
}

int run_pack(const uint8_t* upper, const uint8_t* lower, uint8_t* packed_upper, uint8_t* packed_lower, int64_t n,
             int64_t k, cudaStream_t stream) {
    pack_kernel<<<block_grid(n, k), kThreads, 0, stream>>>(upper, lower, packed_upper, packed_lower,
                                                           static_cast<int>(n), static_cast<int>(k));
    neutral_kernel<<<1, kThreads, 0, stream>>>(packed_lower + neutral_offset(n, k));
    fence_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

}  // namespace nestedfp::cuda
