// Host side of one compiled tile of the mixed GEMM.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gemm/mixed_sm90.cuh"

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
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(K::T::kMulticastCtas * (args.mixed.plan.blocks + args.rest.plan.blocks));
    config.blockDim = dim3(K::T::kThreads);
    config.dynamicSmemBytes = K::kSharedBytes;
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = pdl;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = 2;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = K::T::kMulticastCtas == 2 ? 2 : 1;
    return cudaLaunchKernelEx(&config, mixed_sm90<typename K::T, typename K::Rest>, args);
}

// Compiles one tile, in a file that cuda/generate_tiles.py writes.
#define NESTEDFP_INSTANTIATE_MIXED(...)                \
    template cudaError_t prepare_mixed<__VA_ARGS__>(); \
    template cudaError_t launch_mixed<__VA_ARGS__>(const MixedKernelArgs&, bool, cudaStream_t)

}  // namespace nestedfp::cuda
