// Activations before the product: converted to FP32, optionally rounded to E4M3 row by row, and interleaved block by
// block. 256-bit code for the AVX2 translation unit; see words256.h for the unnamed namespace.
#pragma once

#include <immintrin.h>

#include "activations.h"
#include "cpu/kernels/half.h"
#include "cpu/kernels/kernels.h"

namespace nestedfp::cpu {
namespace {

inline __m256 load_floats(const float* x) { return _mm256_loadu_ps(x); }

inline __m256 load_floats(const Half* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

template <class T>
void convert_row(const T* x, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, load_floats(x + i));
    for (; i < count; ++i) out[i] = to_float(x[i]);
}

// Largest |x| as a bit pattern: magnitudes order as integers, with NaNs above infinity.
template <class T>
uint32_t largest_magnitude(const T* x, int64_t count) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(load_floats(x + i)), mask));
    }
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
    uint32_t result = 0;
    for (int lane = 0; lane < 8; ++lane) result = lanes[lane] > result ? lanes[lane] : result;
    for (; i < count; ++i) {
        const uint32_t magnitude = float_to_bits(to_float(x[i])) & 0x7fffffff;
        result = magnitude > result ? magnitude : result;
    }
    return result;
}

// Values of the E4M3 codes nearest to x / scale, ties to even, saturated to +-kE4m3Max. The two roundings are those of
// round_to_e4m3 in kernels_scalar.cpp.
inline __m256 quantize(__m256 x, __m256 scale) {
    const __m256 sign_mask = _mm256_set1_ps(-0.0f);
    const __m256 scaled = _mm256_div_ps(x, scale);
    const __m256 sign = _mm256_and_ps(scaled, sign_mask);
    const __m256 magnitude = _mm256_min_ps(_mm256_andnot_ps(sign_mask, scaled), _mm256_set1_ps(kE4m3Max));

    const __m256i bits = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    const __m256i carried = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
    const __m256 normal = _mm256_castsi256_ps(_mm256_and_si256(carried, _mm256_set1_epi32(~0xfffff)));

    const __m256 magic = _mm256_set1_ps(0x1.8p14f);
    const __m256 subnormal = _mm256_sub_ps(_mm256_add_ps(magnitude, magic), magic);
    const __m256 is_subnormal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    return _mm256_or_ps(sign, _mm256_blendv_ps(normal, subnormal, is_subnormal));
}

template <class T>
float row_scale(const T* x, int64_t count) {
    const uint32_t largest = largest_magnitude(x, count);
    if (largest >= 0x7f800000) return bits_to_float(0x7fc00000);
    const float wanted = bits_to_float(largest) / kE4m3Max;
    return wanted > kMinScale ? wanted : kMinScale;
}

void quantize_chunk(float* x, int64_t count, float scale) {
    if (scale != scale) {  // a row with a NaN or an infinity: its outputs become NaN through the scale alone
        for (int64_t i = 0; i < count; ++i) x[i] = 0.0f;
        return;
    }
    // The tail goes through the same vector code on a padded copy.
    const __m256 scales = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(x + i, quantize(_mm256_loadu_ps(x + i), scales));
    if (i < count) {
        alignas(32) float tail[8] = {};
        for (int64_t j = i; j < count; ++j) tail[j - i] = x[j];
        _mm256_store_ps(tail, quantize(_mm256_load_ps(tail), scales));
        for (int64_t j = i; j < count; ++j) x[j] = tail[j - i];
    }
}

template <class T>
void pack_block(const PackRowsArgs& args, int64_t row_begin, int64_t rows) {
    constexpr int64_t kChunk = 1024;
    alignas(32) float chunk[kChunk];
    const int64_t padded_k = 2 * pair_count(args.k);
    float* const block = args.packed + row_begin * padded_k;
    for (int64_t row = 0; row < rows; ++row) {
        const T* const x = static_cast<const T*>(args.x) + (row_begin + row) * args.k;
        float scale = 1.0f;
        if (args.quantize) args.token_scale[row_begin + row] = scale = row_scale(x, args.k);
        for (int64_t k = 0; k < args.k; k += kChunk) {
            const int64_t count = args.k - k < kChunk ? args.k - k : kChunk;
            float* const converted = rows == 1 ? block + k : chunk;
            convert_row(x + k, count, converted);
            if (args.quantize) quantize_chunk(converted, count, scale);
            if (rows == 1) continue;
            for (int64_t i = 0; i < count; ++i) block[(k + i) * rows + row] = chunk[i];
        }
        if (padded_k > args.k) block[args.k * rows + row] = 0.0f;
    }
}

template <int block_rows>
void pack_rows(const PackRowsArgs& args, int64_t first_block, int64_t last_block) {
    const int64_t blocks = block_count(args.m, block_rows);
    for (int64_t block = first_block; block < last_block; ++block) {
        const int64_t row = block_begin(args.m, blocks, block);
        const int64_t rows = block_begin(args.m, blocks, block + 1) - row;
        if (args.element == Element::kHalf) {
            pack_block<Half>(args, row, rows);
        } else {
            pack_block<float>(args, row, rows);
        }
    }
}

}  // namespace
}  // namespace nestedfp::cpu
