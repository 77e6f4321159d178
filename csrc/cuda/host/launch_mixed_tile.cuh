// Host side of one compiled tile of the mixed GEMM.
#pragma once

#include "cuda/gemm/mixed_sm90.cuh"
#include "cuda/kernels/launch_kernel.h"

namespace nestedfp::cuda {

template <int Exact, int Fast, int RestTokens, int MulticastCtas>
struct MixedKernel {
    using T = MixedTraits<Exact, Fast, MulticastCtas>;
    using Rest = TileTraits<Precision::kFp8, 2, 1, RestTokens, 1, MulticastCtas>;
    static constexpr int kSharedBytes = T::kSharedBytes > Rest::kSharedBytes ? T::kSharedBytes : Rest::kSharedBytes;
};

template <int... Tile>
cudaError_t prepare_mixed() {
    using K = MixedKernel<Tile...>;
    return cudaFuncSetAttribute(mixed_sm90<typename K::T, typename K::Rest>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, K::kSharedBytes);
}

template <int... Tile>
cudaError_t launch_mixed(const MixedKernelArgs& args, bool pdl, cudaStream_t stream) {
    using K = MixedKernel<Tile...>;
    constexpr int kCtas = K::T::kMulticastCtas;
    const int64_t blocks = kCtas * (args.mixed.plan.blocks + args.rest.plan.blocks);
    return launch_kernel(mixed_sm90<typename K::T, typename K::Rest>,
                         Launch{blocks, K::T::kThreads, K::kSharedBytes, kCtas, pdl, stream}, args);
}

// Compiles one tile, in a file that cuda/generate_tiles.py writes.
#define NESTEDFP_INSTANTIATE_MIXED(...)                \
    template cudaError_t prepare_mixed<__VA_ARGS__>(); \
    template cudaError_t launch_mixed<__VA_ARGS__>(const MixedKernelArgs&, bool, cudaStream_t)

}  // namespace nestedfp::cuda
