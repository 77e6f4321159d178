// 256-bit integer half of the kernels: FP16 words to planes and back. Included by the AVX2 translation unit only;
// everything is in an unnamed namespace so that its instructions cannot be linked into another unit.
#pragma once

#include <immintrin.h>

#include "cpu/kernels/kernels.h"
#include "format.h"

namespace nestedfp::cpu {
namespace {

inline __m256i load256(const void* data) { return _mm256_loadu_si256(static_cast<const __m256i*>(data)); }

// 16 sign-and-magnitude words (s 0 mmmmmmm 0000000) from a 32-byte pair: those of k odd sit in the high bytes already.
template <int parity>
inline __m256i upper_words(const uint8_t* pair) {
    __m256i words = load256(pair);
    if constexpr (parity == 0) words = _mm256_slli_epi16(words, 8);
    // The arithmetic shift puts the magnitude in place and leaves a second copy of the sign in bit 14, which the mask
    // drops.
    return _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
}

// 16 FP16 weights of one k.
template <Weights weights, int parity>
inline __m256i weight_words(const uint8_t* upper, const int8_t* residual) {
    if constexpr (weights == Weights::kFp8) {
        return upper_words<parity>(upper);
    } else {
        __m256i distance = load256(residual);
        if constexpr (parity == 0) distance = _mm256_slli_epi16(distance, 8);
        // The magnitude never goes below zero, so the sum never borrows from the sign.
        return _mm256_add_epi16(upper_words<parity>(upper), _mm256_srai_epi16(distance, 8));
    }
}

// Bytes ahead of the loads to prefetch. The hardware prefetcher stops at 4 KiB pages, and panels that are read side by
// side reach a page's end at the same time.
inline constexpr int64_t kPrefetchBytes = 1024;

// The weights of one panel from where `upper` and `residual` point to.
struct PanelCursor {
    const uint8_t* upper;
    const int8_t* residual;
};

template <Weights weights>
inline PanelCursor panel_cursor(const LinearArgs& args, int64_t panel) {
    const int64_t start = panel * pair_count(args.k) * kPairBytes;
    if constexpr (weights == Weights::kFp8) return {args.upper + start, nullptr};
    return {args.upper + start, args.residual + start};
}

// Returns the next 2 * pairs k of a panel as FP16 words [k][16] and moves the cursor on. They are rebuilt in `scratch`.
// Going through the first-level cache is on purpose: VCVTPH2PS from memory needs no shuffle
// and has four times the throughput of VCVTPH2PS from a register on Zen 3.
template <Weights weights>
inline const uint16_t* next_words(PanelCursor& cursor, int64_t pairs, uint16_t* scratch) {
    const PanelCursor from = cursor;  // a copy in registers: the stores below could alias the caller's
    for (int64_t i = 0; i < pairs; ++i) {
        const uint8_t* const upper = from.upper + i * kPairBytes;
        const int8_t* const residual = weights == Weights::kFp16 ? from.residual + i * kPairBytes : nullptr;
        __builtin_prefetch(upper + kPrefetchBytes);
        if constexpr (weights == Weights::kFp16) __builtin_prefetch(residual + kPrefetchBytes);
        auto* const out = reinterpret_cast<__m256i*>(scratch + i * 2 * kPanel);
        _mm256_store_si256(out, weight_words<weights, 0>(upper, residual));
        _mm256_store_si256(out + 1, weight_words<weights, 1>(upper, residual));
    }
    cursor.upper += pairs * kPairBytes;
    if constexpr (weights == Weights::kFp16) cursor.residual += pairs * kPairBytes;
    return scratch;
}

struct SplitVector {
    __m256i upper, lower;        // 16 words, each below 256
    __m256i outside, nonfinite;  // masks; outside includes nonfinite
};

inline SplitVector split_vector(__m256i words) {
    const __m256i limit = _mm256_set1_epi16(kLimitMagnitude);
    const __m256i raw = _mm256_and_si256(words, _mm256_set1_epi16(kMagnitudeMask));
    const __m256i magnitude = _mm256_min_epi16(raw, limit);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(magnitude, 7), _mm256_set1_epi16(1));
    const __m256i half = _mm256_add_epi16(odd, _mm256_set1_epi16(0x3f));
    const __m256i rounded = _mm256_srli_epi16(_mm256_add_epi16(magnitude, half), 7);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(words, 8), _mm256_set1_epi16(0x80));
    return {_mm256_or_si256(sign, rounded), _mm256_and_si256(magnitude, _mm256_set1_epi16(0xff)),
            _mm256_cmpgt_epi16(raw, limit), _mm256_cmpgt_epi16(raw, _mm256_set1_epi16(kInfinity - 1))};
}

// Low bytes of 32 words, in order.
inline __m256i narrow(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);  // packus works per 128-bit half
}

inline int64_t count_words(__m256i mask) {
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask))) / 2;
}

SplitCounts split_words(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count) {
    int64_t outside = 0;
    int64_t nonfinite = 0;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const SplitVector a = split_vector(load256(weight + i));
        const SplitVector b = split_vector(load256(weight + i + 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper + i), narrow(a.upper, b.upper));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower + i), narrow(a.lower, b.lower));
        if (__builtin_expect(!_mm256_testz_si256(_mm256_or_si256(a.outside, b.outside), _mm256_set1_epi8(-1)), 0)) {
            outside += count_words(a.outside) + count_words(b.outside);
            nonfinite += count_words(a.nonfinite) + count_words(b.nonfinite);
        }
    }
    for (; i < count; ++i) {
        outside += !is_nestable(weight[i]);
        nonfinite += !is_finite(weight[i]);
        const Nested nested = split(clamp_to_limit(weight[i]));
        upper[i] = nested.upper;
        lower[i] = nested.lower;
    }
    return {outside - nonfinite, nonfinite};
}

}  // namespace
}  // namespace nestedfp::cpu
