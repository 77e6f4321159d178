// The instructions of csrc/cuda/gemm/bits.cuh by their definition in the PTX manual.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

template <int Selector>
inline uint32_t permute_bytes(uint32_t a, uint32_t b) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) d |= static_cast<uint32_t>(both >> 8 * (Selector >> 4 * i & 7) & 0xff) << 8 * i;
    return d;
}

inline uint32_t inverted_and_or(uint32_t a, uint32_t mask, uint32_t constant) { return (~a & mask) | constant; }

}  // namespace nestedfp::cuda
