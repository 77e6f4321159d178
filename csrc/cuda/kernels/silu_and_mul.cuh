// silu(gate) * up. The arithmetic is that of vLLM's compiled silu_and_mul: silu in FP32 with the processor's own
// exponential and reciprocal, whose last bits are not exact, rounded to FP16, times up in FP16.
#pragma once

#include <cuda_fp16.h>

#include "cuda/kernels/half_words.cuh"

namespace nestedfp::cuda {

NESTEDFP_DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Of two neighbours each.
NESTEDFP_DEVICE uint32_t silu_and_mul(uint32_t gate, uint32_t up) {
    const float2 x = __half22float2(halves_of(gate));
    return word_of(__hmul2_rn(__floats2half2_rn(silu(x.x), silu(x.y)), halves_of(up)));
}

}  // namespace nestedfp::cuda
