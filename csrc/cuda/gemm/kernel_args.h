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
    int64_t lower_row_stride;  // bytes from one block of 64 rows to the next; 0 with neutral_lower
    int64_t lower_col_stride;  // bytes from one block of 64 columns to the next; 0 with neutral_lower
    int lower_row_blocks;
    const float* token_scale;  // FP8 only
    const __half* bias;        // or null
    __half* out;
    float* partial_sums;  // of the parts that meet in device memory (epilogue.cuh)
    int* counters;        // one per split tile and row warpgroup, zero between launches
    int m, n;
    uint32_t zero;  // 0, which the compiler must not know (consumer.cuh)
    GemmPlan plan;
    uint64_t x_policy, weight_policy;
};

}  // namespace nestedfp::cuda
