// Scalar FP16 conversions, bit for bit what F16C does. For the reference loops and for tails.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels/kernels.h"

namespace nestedfp::cpu {

struct Half {
    uint16_t bits;
};

static inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float to_float(float x) { return x; }

static inline float to_float(Half x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
    const uint32_t exponent = (x.bits >> 10) & 0x1f;
    const uint32_t mantissa = x.bits & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: an integer multiple of 2^-24, exact in float
        return bits_to_float(sign | float_to_bits(static_cast<float>(mantissa) * 0x1p-24f));
    }
    if (exponent == 31) {
        const uint32_t quiet = mantissa != 0 ? 0x00400000 : 0;
        return bits_to_float(sign | 0x7f800000 | mantissa << 13 | quiet);
    }
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline void from_float(float value, Half* out) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00 | (magnitude >> 13 & 0x3ff);
    } else if (magnitude >= 0x47800000) {  // 65536 and above, infinity included
        half = 0x7c00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: round to a multiple of 2^-24 by adding 1.5 * 2^(23 - 24)
        half = float_to_bits(bits_to_float(magnitude) + 0.75f) - float_to_bits(0.75f);
    } else {  // rounding may carry into the exponent, and from 65520 up into infinity: both are the right answer
        half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
    out->bits = static_cast<uint16_t>(sign | half);
}

// Not inline: only outliers, bias and the reference loops read element by element.
static __attribute__((noinline, unused)) float element_at(const void* data, Element element, int64_t index) {
    if (element == Element::kHalf) return to_float(static_cast<const Half*>(data)[index]);
    return static_cast<const float*>(data)[index];
}

}  // namespace nestedfp::cpu
