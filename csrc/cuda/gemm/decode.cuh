// The exact decoder: four weights from four bytes of each plane in six instructions (2 PRMT, 2 LOP3, 1 IMAD, 1 LEA.HI).
#pragma once

#include "cuda/gemm/bits.cuh"

namespace nestedfp::cuda {

// Bytes c = 0..3 of `upper` and `lower` (layout.h) belong to k = 0, 8, 1, 9. low = (k 0, k 1), high = (k 8, k 9) as
// half2.
//
// A weight is sign | (upper & 0x7f) * 128 + residual in 16-bit integer arithmetic; two weights share a register, so the
// parts that would carry or borrow into a neighbour must cancel. The permutes place upper's byte (for its sign) above
// lower's; the inverted magnitude times 128 then subtracts upper's magnitude at the wrong place and adds it at the
// right one, and the constants and the biases of the lower plane (128 and 127) cancel what is left. A test walks all
// 32,258 values in every lane.
NESTEDFP_DEVICE void decode4(uint32_t upper, uint32_t lower, uint32_t& low, uint32_t& high) {
    low = inverted_and_or(upper, 0x007f007fu, 0x01800180u) * 128u + permute_bytes<0x2604>(upper, lower);
    high = static_cast<uint32_t>(static_cast<int32_t>(inverted_and_or(upper, 0x7f007f00u, 0x80018000u)) >> 1) +
           permute_bytes<0x3715>(upper, lower);
}

// The same of bytes that belong to k = 0, 1, 2, 3, as experts have them, the lower ones residuals plus 127: low = (k 0,
// k 1), high = (k 2, k 3).
NESTEDFP_DEVICE uint32_t decode2(uint32_t pairs) {
    return static_cast<uint32_t>(static_cast<int32_t>(inverted_and_or(pairs, 0x7f007f00u, 0x80018002u)) >> 1) + pairs;
}

template <bool InOrder>
NESTEDFP_DEVICE void decode4(uint32_t upper, uint32_t lower, uint32_t& low, uint32_t& high) {
    if constexpr (InOrder) {
        low = decode2(permute_bytes<0x1504>(upper, lower));
        high = decode2(permute_bytes<0x3726>(upper, lower));
    } else {
        decode4(upper, lower, low, high);
    }
}

}  // namespace nestedfp::cuda
