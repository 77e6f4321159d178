// One token's activations rounded to E4M3, by the block that holds them: what the quantiser shares with the kernels
// that it is fused into. The arithmetic is nestedfp/kernels/activations.py's, bit for bit:
//
//     scale = max(amax / 448, 1 / (448 * 512))
//     codes = x / scale
//
// A thread holds `Chunks` chunks of 8 columns, those of number i * blockDim.x + threadIdx.x, as FP16 bits. The number
// of threads is a multiple of 32, so every shuffle is complete: chunks beyond the row are zeros that are not stored.
#pragma once

#include <cuda_fp16.h>

#include "activations.h"
#include "cuda/device.h"
#include "cuda/kernels/e4m3.cuh"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

static_assert(kCarrierColumns == kBlockCols, "a row of codes in a carrier is a row of the packed K order");

inline constexpr uint32_t kInfinityBits = 0x7c00;

NESTEDFP_DEVICE uint32_t max_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fff); }

// Eight neighbouring columns of one token, as read from x:
//
// clang-format off
//     columns                   k = 16 * j + 8 * h + 0..7
//     belong to bytes           16 * t + 4 * j + h  and  16 * t + 4 * j + h + 2      for t = 0..3
// clang-format on
//
// So two neighbouring threads (h = 0 and 1) swap halves, and then each owns whole words of two t.
NESTEDFP_DEVICE void store_codes(uint4 raw, float scale, uint8_t* codes, int chunk) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t packed[4];  // [t]: bytes for c = h and h + 2
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&words[t]));
        packed[t] = to_codes(__fdiv_rn(v.x, scale), __fdiv_rn(v.y, scale));
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

// Two neighbouring columns as a word, and back.
NESTEDFP_DEVICE __half2 halves_of(uint32_t word) {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    return pair;
}
NESTEDFP_DEVICE uint32_t word_of(__half2 pair) {
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
}

// The larger of two magnitudes, in each half, so far and of eight more columns.
NESTEDFP_DEVICE uint32_t max_magnitudes(uint32_t largest, uint4 raw) {
    return max_halves(max_halves(max_halves(max_halves(largest, raw.x), raw.y), raw.z), raw.w);
}

// The token's scale, the same in all threads. largest: each thread's, from max_magnitudes. warp_max: [32], shared
// memory.
NESTEDFP_DEVICE float row_scale(uint32_t largest, uint32_t* warp_max) {
    largest = max(largest & 0xffff, largest >> 16);
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = threadIdx.x % 32 < blockDim.x / 32 ? warp_max[threadIdx.x % 32] : 0;
    largest = __reduce_max_sync(~0u, largest);
    // Half patterns order like their magnitudes, infinities and NaNs above all: such a row has no scale.
    const float amax = __half2float(__ushort_as_half(static_cast<unsigned short>(largest)));
    return largest >= kInfinityBits ? __int_as_float(0x7fc00000) : fmaxf(__fdiv_rn(amax, kE4m3Max), kMinScale);
}

// The token's codes, `chunks` chunks of them, to their places in the packed K order.
template <int Chunks>
NESTEDFP_DEVICE void store_row(const uint4 (&raw)[Chunks], float scale, uint8_t* codes, int chunks) {
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = i * blockDim.x + threadIdx.x;
        if (chunk / 32 * 32 < chunks) {  // a warp stores together or not at all; rows are whole blocks of 8 chunks
            if (chunk / 8 * 8 < chunks) {
                store_codes(raw[i], scale, codes, chunk);
            } else {
                __shfl_xor_sync(~0u, 0u, 1);
            }
        }
    }
}

// The same chunks as they are, FP16.
template <int Chunks>
NESTEDFP_DEVICE void store_halves(const uint4 (&raw)[Chunks], uint4* row, int chunks) {
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = i * blockDim.x + threadIdx.x;
        if (chunk < chunks) row[chunk] = raw[i];
    }
}

}  // namespace nestedfp::cuda
