// What a GEMM kernel receives beside its tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// L2 eviction policies, in the encoding that createpolicy returns for a whole access.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000;

// The rows of experts. How many each has, the device alone knows.
struct ExpertRows {
    // For each row of x its row of D; `valid` and more: none, it fills up a tile.
    const int* row_ids;
    int valid;
    // The expert of each token tile, and the rows of all tiles.
    const int* tile_experts;
    const int* padded_rows;
    // The weights are gate, then up, and D is silu(gate) * up, whose rows are those of x.
    bool is_gated;
};

struct KernelArgs {
    const uint8_t* lower;
    // Bytes from one block of 64 rows or columns to the next; 0 with neutral_lower.
    int64_t lower_row_stride;
    int64_t lower_col_stride;
    int lower_row_blocks;
    // FP8, and of experts, where it may be null: what is multiplied to the results of each row of x.
    const float* token_scale;
    // Or null.
    const __half* bias;
    __half* out;
    OutlierList outliers;
    ExpertRows experts;
    // Partial sums of split-K with a global workspace (epilogue.cuh).
    float* workspace;
    // Zero between launches: one per split tile and row warpgroup; of experts, tiles taken, and blocks that are done.
    int* semaphores;
    int m, n;
    // Mixed tiles only: the rows that they hold.
    int exact_rows, fast_rows;
    // 0, which the compiler must not know (consumer.cuh).
    uint32_t zero;
    GemmPlan plan;
    uint64_t x_policy, weight_policy;
};

// Of the products of experts, whose planes lie one below the other.
struct ExpertsKernelArgs {
    CUtensorMap x_map, upper_map, lower_map;
    KernelArgs gemm;
};

// Of the mixed GEMM's two kinds of thread blocks.
struct MixedKernelArgs {
    // x as FP16 and as bytes, the upper plane; then what the FP8 GEMM of the other fast rows reads.
    CUtensorMap exact_map, fast_map, upper_map, rest_map, rest_upper_map;
    KernelArgs mixed, rest;
};

}  // namespace nestedfp::cuda
