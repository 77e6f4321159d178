// What a GEMM kernel receives beside its two tensor maps.
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

struct KernelArgs {
    const uint8_t* lower;
    // Bytes from one block of 64 rows or columns to the next; 0 with neutral_lower.
    int64_t lower_row_stride;
    int64_t lower_col_stride;
    int lower_row_blocks;
    // FP8 only.
    const float* token_scale;
    // Or null.
    const __half* bias;
    __half* out;
    // Partial sums of split-K with a global workspace (epilogue.cuh).
    float* workspace;
    // One per split tile and row warpgroup, zero between launches.
    int* semaphores;
    int m, n;
    // 0, which the compiler must not know (consumer.cuh).
    uint32_t zero;
    GemmPlan plan;
    uint64_t x_policy, weight_policy;
};

}  // namespace nestedfp::cuda
