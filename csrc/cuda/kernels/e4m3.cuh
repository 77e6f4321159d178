// The conversion of FP32 numbers to E4M3, which CUDA C++ has no name for.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

// Two E4M3 codes, that of `low` in the low byte.
NESTEDFP_DEVICE uint32_t to_codes(float low, float high) {
    uint16_t codes = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
#else
    __trap();  // never launched there: no E4M3 products either
#endif
    return codes;
}

}  // namespace nestedfp::cuda
