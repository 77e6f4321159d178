// One token's activations rounded to E4M3, by the blocks that hold them (row_part.cuh): what the quantiser shares with
// the kernels that it is fused into. The arithmetic is, bit for bit:
//
//     scale = max(amax / 448, 1 / (448 * 512))
//     codes = x / scale
//
// Chunks are FP16 bits.
#pragma once

#include <cuda_fp16.h>

#include "activations.h"
#include "cuda/device.h"
#include "cuda/kernels/half_words.cuh"
#include "cuda/kernels/layout.h"
#include "cuda/kernels/row_part.cuh"

namespace nestedfp::cuda {

static_assert(kCarrierColumns == kBlockCols, "a row of codes in a carrier is a row of the packed K order");

inline constexpr uint32_t kInfinityBits = 0x7c00;

NESTEDFP_DEVICE uint32_t max_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fff); }

// x / divisor, rounded as a division is, in three instructions: the product with the rounded inverse and one step of
// Newton's. For every FP16 number and every scale that a token with such a number can have
// (tests/kernels/test_row_kernels.py goes through them all); the signs of zeros are kept.
NESTEDFP_DEVICE float quotient(float x, float divisor, float inverse) {
    const float near = x * inverse;
    return fmaf(fmaf(near, divisor, -x), -inverse, near);
}

// Eight neighbouring columns of one token, as read from x:
//
// clang-format off
//     columns                   k = 16 * j + 8 * h + 0..7
//     belong to bytes           16 * t + 4 * j + h  and  16 * t + 4 * j + h + 2      for t = 0..3
// clang-format on
//
// So two neighbouring threads (h = 0 and 1) swap halves, and then each owns whole words of two t.
NESTEDFP_DEVICE void store_codes(uint4 raw, float scale, float inverse, uint8_t* codes, int chunk) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t packed[4];  // [t]: bytes for c = h and h + 2
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const float2 v = __half22float2(halves_of(words[t]));
        packed[t] = to_codes(quotient(v.x, scale, inverse), quotient(v.y, scale, inverse));
    }
    const int h = chunk % 2, j = chunk / 2 % 4;
    // Thread h keeps t = 2h, 2h + 1 and gives away the others.
    const uint32_t give = h == 0 ? packed[2] | packed[3] << 16 : packed[0] | packed[1] << 16;
    const uint32_t keep = h == 0 ? packed[0] | packed[1] << 16 : packed[2] | packed[3] << 16;
    const uint32_t got = __shfl_xor_sync(~0u, give, 1);
    const uint32_t h0 = h == 0 ? keep : got, h1 = h == 0 ? got : keep;  // two t each: (c 0, c 2) and (c 1, c 3)
    uint32_t* const to = reinterpret_cast<uint32_t*>(codes + chunk / 8 * 64);
    to[(2 * h) * 4 + j] = __byte_perm(h0, h1, 0x5140);
    to[(2 * h + 1) * 4 + j] = __byte_perm(h0, h1, 0x7362);
}

// The larger of two magnitudes, in each half, so far and of eight more columns.
NESTEDFP_DEVICE uint32_t max_magnitudes(uint32_t largest, uint4 raw) {
    return max_halves(max_halves(max_halves(max_halves(largest, raw.x), raw.y), raw.z), raw.w);
}

// The token's scale, the same in all threads. largest: each thread's, from max_magnitudes.
NESTEDFP_DEVICE float row_scale(uint32_t largest, const RowPart& part) {
    largest = max(largest & 0xffff, largest >> 16);
    largest = __reduce_max_sync(~0u, largest);
    const int count = part.exchange(kMaximumSlots, largest);
    largest = 0;
    for (int i = threadIdx.x % 32; i < count; i += 32) largest = max(largest, part.exchanged(kMaximumSlots, i));
    largest = __reduce_max_sync(~0u, largest);
    // Half patterns order like their magnitudes, infinities and NaNs above all: such a row has no scale.
    const float amax = __half2float(__ushort_as_half(static_cast<unsigned short>(largest)));
    return largest >= kInfinityBits ? __int_as_float(0x7fc00000) : fmaxf(__fdiv_rn(amax, kE4m3Max), kMinScale);
}

// The token's codes, of this part, to their places in the packed K order. codes: of the whole row.
template <int Chunks>
NESTEDFP_DEVICE void store_row(const uint4 (&raw)[Chunks], float scale, uint8_t* codes, const RowPart& part) {
    const float inverse = __fdiv_rn(1.0f, scale);
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        if (chunk / 32 * 32 < part.end) {  // a warp stores together or not at all; rows are whole blocks of 8 chunks
            if (chunk / 8 * 8 < part.end) {
                store_codes(raw[i], scale, inverse, codes, chunk);
            } else {
                __shfl_xor_sync(~0u, 0u, 1);
            }
        }
    }
}

// The same chunks as they are, FP16.
template <int Chunks>
NESTEDFP_DEVICE void store_halves(const uint4 (&raw)[Chunks], uint4* row, const RowPart& part) {
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        if (chunk < part.end) row[chunk] = raw[i];
    }
}

// What the rows of a carrier are (kernels.h). Kernels of one kind of rows are compiled apart: what they save is most of
// a step of few rows.
enum class CarrierRows { kExact, kFast, kBoth };

constexpr CarrierRows carrier_rows(int64_t m, int64_t exact) {
    return exact >= m ? CarrierRows::kExact : exact == 0 ? CarrierRows::kFast : CarrierRows::kBoth;
}

// One row of a carrier, of which the first `exact` rows are exact, and its scale if it is a fast one. largest: each
// thread's, from max_magnitudes.
template <CarrierRows Kind, int Chunks>
NESTEDFP_DEVICE void store_carried(const uint4 (&raw)[Chunks], uint32_t largest, void* carrier, float* scales,
                                   int chunks, int exact, const RowPart& part) {
    auto* const rows = static_cast<uint4*>(carrier);
    const int64_t first = static_cast<int64_t>(part.row) * chunks;
    if (Kind == CarrierRows::kExact || (Kind == CarrierRows::kBoth && part.row < exact)) {
        store_halves(raw, rows + first, part);
        return;
    }
    if constexpr (Kind != CarrierRows::kExact) {
        const int64_t before = Kind == CarrierRows::kBoth ? static_cast<int64_t>(exact) * chunks : 0;
        const float scale = row_scale(largest, part);
        if (part.first == 0 && threadIdx.x == 0) scales[part.row] = scale;
        store_row(raw, scale, reinterpret_cast<uint8_t*>(rows + before) + (first - before) * 8, part);
    }
}

}  // namespace nestedfp::cuda
