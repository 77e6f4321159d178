// In place of CUDA's header: what the kernels of csrc/cuda/kernels use of FP16 and of vector types, on a processor with F16C.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

using std::max;

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

inline float __half2float(__half value) { return _cvtsh_ss(value.bits); }
inline __half __float2half_rn(float value) { return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))}; }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 pair) { return __floats2half2_rn(pair.x, pair.y); }
inline __half2 __hmul2_rn(__half2 a, __half2 b) {
    return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }

inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) { return max(a >> 16, b >> 16) << 16 | max(a & 0xffff, b & 0xffff); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selectors) {
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t from = selectors >> 4 * i & 7;
        result |= ((from < 4 ? a >> 8 * from : b >> 8 * (from - 4)) & 0xff) << 8 * i;
    }
    return result;
}
