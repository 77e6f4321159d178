// The conversion of csrc/cuda/kernels/e4m3.cuh by its definition in the PTX manual: to nearest, ties to even,
// saturating.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

inline uint32_t to_code(float value) {
    if (std::isnan(value)) return 0x7f;
    const uint32_t sign = std::signbit(value) ? 0x80 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude >= 448) return sign | 0x7e;
    if (magnitude == 0) return sign;
    int exponent = 0;
    std::frexp(magnitude, &exponent);                    // magnitude = [0.5, 1) * 2^exponent
    const int last = exponent < -5 ? -9 : exponent - 4;  // of the last bit: subnormals share that of 2^-6
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -last)));
    // Normal numbers have 8 to 16 steps, the last of which is the next exponent's first.
    return sign | static_cast<uint32_t>(last == -9 ? steps : ((last + 9) << 3) + steps);
}

inline uint32_t to_codes(float low, float high) { return to_code(high) << 8 | to_code(low); }

}  // namespace nestedfp::cuda
