// The two integer instructions of the decoder that CUDA C++ has no name for.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

// Byte i of the result is byte (Selector >> 4 * i) % 8 of a (0 to 3) and b (4 to 7).
template <int Selector>
NESTEDFP_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b) {
    uint32_t d;
    asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "n"(Selector));
    return d;
}

// (~a & mask) | constant
NESTEDFP_DEVICE uint32_t inverted_and_or(uint32_t a, uint32_t mask, uint32_t constant) {
    uint32_t d;
    asm volatile("lop3.b32 %0, %1, %2, %3, 0xAE;" : "=r"(d) : "r"(a), "r"(mask), "r"(constant));
    return d;
}

}  // namespace nestedfp::cuda
