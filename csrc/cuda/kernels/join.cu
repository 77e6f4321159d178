// Packed planes -> the exact FP16 weights, rows at a time: for a library's GEMM and the self-check. At memory speed:
// two bytes read, two written for each weight.
#include "cuda/gemm/decode.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch_kernel.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

constexpr int kThreads = 256;
// Words of two weights between rows in shared memory: 36 of 4 bytes, so that rows begin at other banks and at multiples
// of 16 bytes.
constexpr int kPitch = kBlockCols / 2 + 4;

// One block per 64 x 64 weights. A thread decodes 16 neighbouring bytes of each plane (layout.h); shared memory turns
// the permuted columns into whole rows.
__global__ void __launch_bounds__(kThreads)
    join_kernel(const uint8_t* upper, const uint8_t* lower, uint16_t* out, int n, int k, int first_row, int rows) {
    alignas(16) __shared__ uint32_t pairs[kBlockRows * kPitch];
    const int col_blocks = static_cast<int>(upper_pitch(k) / kBlockCols);
    const int col_block = static_cast<int>(blockIdx.x) % col_blocks;
    const int row_block = first_row / kBlockRows + static_cast<int>(blockIdx.x) / col_blocks;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad_lane = lane % 4;
    const int row = thread / 64 * 16 + thread / 32 % 2 * 8 + lane / 4;
    if (row_block * kBlockRows + row < n) {
        const int64_t block = row_block * lower_col_blocks(k) + col_block;
        const int64_t upper_row = static_cast<int64_t>(row_block) * kBlockRows + row;
        const auto upper_bytes = *reinterpret_cast<const uint4*>(upper + upper_row * upper_pitch(k) +
                                                                 col_block * kBlockCols + quad_lane * 16);
        const auto lower_bytes = *reinterpret_cast<const uint4*>(lower + block * kBlockBytes + thread * 16);
        uint32_t* const to = pairs + row * kPitch + quad_lane;
        decode4(upper_bytes.x, lower_bytes.x, to[0], to[4]);
        decode4(upper_bytes.y, lower_bytes.y, to[8], to[12]);
        decode4(upper_bytes.z, lower_bytes.z, to[16], to[20]);
        decode4(upper_bytes.w, lower_bytes.w, to[24], to[28]);
    }
    __syncthreads();
    constexpr int kRowChunks = kBlockCols / 8;  // of 16 bytes
    for (int chunk = thread; chunk < kBlockRows * kRowChunks; chunk += kThreads) {
        const int from_row = chunk / kRowChunks, col = col_block * kBlockCols + chunk % kRowChunks * 8;
        const int64_t to_row = static_cast<int64_t>(row_block) * kBlockRows + from_row - first_row;
        if (to_row >= rows || col >= k) continue;
        uint16_t* const to = out + to_row * k + col;
        const auto* const halves =
            reinterpret_cast<const uint16_t*>(pairs + from_row * kPitch + chunk % kRowChunks * 4);
        if (k % 8 == 0) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(halves);
        } else {
            for (int i = 0; i < 8 && col + i < k; ++i) to[i] = halves[i];
        }
    }
}

}  // namespace

int run_join(const uint8_t* packed_upper, const uint8_t* packed_lower, uint16_t* out, int64_t n, int64_t k,
             int64_t first_row, int64_t rows, cudaStream_t stream) {
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows * (upper_pitch(k) / kBlockCols);
    return launch_kernel(join_kernel, Launch{blocks, kThreads, 0, 1, false, stream}, packed_upper, packed_lower, out,
                         static_cast<int>(n), static_cast<int>(k), static_cast<int>(first_row), static_cast<int>(rows));
}

}  // namespace nestedfp::cuda
