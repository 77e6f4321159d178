// A thread's accumulators, four at a time.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gemm/ptx.cuh"

namespace nestedfp::cuda {

template <int Count>
NESTEDFP_DEVICE float4 group(const float (&sum)[Count], int i) {
    return make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
}

template <int Count>
NESTEDFP_DEVICE void add_group(float (&sum)[Count], int i, float4 v) {
    sum[4 * i] += v.x;
    sum[4 * i + 1] += v.y;
    sum[4 * i + 2] += v.z;
    sum[4 * i + 3] += v.w;
}

}  // namespace nestedfp::cuda
