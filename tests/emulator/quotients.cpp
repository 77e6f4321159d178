// Compares csrc/cuda/kernels/row_codes.cuh's quotient with a division, for every FP16 number and every scale that a
// token with such a number can have, the signs of zeros too. Standard output: how many pairs, and those that differ.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>

#include "cuda/kernels/row_codes.cuh"

using namespace nestedfp::cuda;

int main() {
    static float halves[kInfinityBits];
    for (uint32_t bits = 0; bits < kInfinityBits; ++bits)
        halves[bits] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    long pairs = 0, differing = 0;
    for (uint32_t amax = 0; amax < kInfinityBits; ++amax) {
        const float scale = fmaxf(__fdiv_rn(halves[amax], nestedfp::kE4m3Max), nestedfp::kMinScale);
        const float inverse = 1.0f / scale;
        for (uint32_t i = 0; i <= amax; ++i, ++pairs)
            differing += quotient(halves[i], scale, inverse) != halves[i] / scale;
        differing += !std::signbit(quotient(-0.0f, scale, inverse)) + std::signbit(quotient(0.0f, scale, inverse));
    }
    std::printf("%ld pairs, %ld differ\n", pairs, differing);
    return differing == 0 ? 0 : 1;
}
