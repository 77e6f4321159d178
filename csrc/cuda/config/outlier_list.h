// The few weights beyond 1.75, as a GEMM takes them.
#pragma once

#include <cstdint>

namespace nestedfp::cuda {

// Weight [rows[i], cols[i]] is more by deltas[i] than the planes say; rows ascend. The sums of listed rows get x *
// delta in FP32 before they are rounded.
struct OutlierList {
    // [M, K] FP16 whatever the precision, rows x_pitch elements apart.
    const uint16_t* x;
    int64_t x_pitch;
    const int32_t* rows;
    const int32_t* cols;
    const float* deltas;
    // 0: none.
    int count;
};

}  // namespace nestedfp::cuda
