// As much of CUDA's FP16 as the kernels use: rounding to nearest, ties to even.
#pragma once

#include <cstring>

#include "cpu/kernels/half.h"
#include "cuda_runtime.h"

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};

inline float __half2float(__half h) { return nestedfp::cpu::to_float(nestedfp::cpu::Half{h.bits}); }

inline __half __float2half_rn(float value) {
    nestedfp::cpu::Half half;
    nestedfp::cpu::from_float(value, &half);
    return {half.bits};
}

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }

// A product of two FP16 numbers is exact in FP32, so one rounding follows.
inline __half2 __hmul2_rn(__half2 a, __half2 b) {
    return {__float2half_rn(__half2float(a.x) * __half2float(b.x)),
            __float2half_rn(__half2float(a.y) * __half2float(b.y))};
}
