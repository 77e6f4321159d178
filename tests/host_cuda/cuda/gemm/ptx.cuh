// In place of csrc/cuda/gemm/ptx.cuh: what kernels outside the GEMM use of it.
#pragma once

#include <cuda_runtime.h>

#define NESTEDFP_DEVICE inline

namespace nestedfp::cuda {

inline void pdl_wait() {}
inline void pdl_launch_dependents() {}

// Nearest of the 127 magnitudes, ties to the even code, saturating.
inline uint8_t to_code(float value) {
    if (std::isnan(value)) return 0x7f;
    const double wanted = std::fabs(static_cast<double>(value));
    uint8_t nearest = 0;
    double distance = INFINITY;
    for (int code = 0; code < 0x7f; ++code) {
        const int exponent = code >> 3, mantissa = code & 7;
        const double magnitude =
            exponent > 0 ? std::ldexp(1 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
        const double off = std::fabs(magnitude - wanted);
        if (off < distance || (off == distance && code % 2 == 0)) {
            distance = off;
            nearest = static_cast<uint8_t>(code);
        }
    }
    return static_cast<uint8_t>((std::signbit(value) ? 0x80 : 0) | nearest);
}

inline uint32_t to_codes(float low, float high) { return to_code(low) | to_code(high) << 8; }

}  // namespace nestedfp::cuda
