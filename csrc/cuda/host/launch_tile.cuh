// Host side of one compiled tile: shared-memory limit, grid, cluster, programmatic dependent launch.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gemm/gemm_sm90.cuh"

namespace nestedfp::cuda {

// Loads the kernel onto the current device and raises its shared-memory limit.
template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm, int MulticastCtas>
cudaError_t prepare() {
    using T = TileTraits<P, RowWarpgroups, KWarpgroups, Tokens, BlocksPerSm, MulticastCtas>;
    return cudaFuncSetAttribute(gemm_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes);
}

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm, int MulticastCtas>
cudaError_t launch(const CUtensorMap& x_map, const CUtensorMap& upper_map, const KernelArgs& args, bool pdl,
                   cudaStream_t stream) {
    using T = TileTraits<P, RowWarpgroups, KWarpgroups, Tokens, BlocksPerSm, MulticastCtas>;
    const int cluster = args.plan.cluster * args.plan.multicast_ctas;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(args.plan.blocks * args.plan.multicast_ctas);
    config.blockDim = dim3(T::kThreads);
    config.dynamicSmemBytes = T::kSharedBytes;
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = pdl;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, gemm_sm90<T>, x_map, upper_map, args);
}

// Compiles one tile, in a file that cuda/generate_tiles.py writes.
#define NESTEDFP_INSTANTIATE(precision, ...)                                                               \
    template cudaError_t prepare<Precision::precision, __VA_ARGS__>();                                     \
    template cudaError_t launch<Precision::precision, __VA_ARGS__>(const CUtensorMap&, const CUtensorMap&, \
                                                                   const KernelArgs&, bool, cudaStream_t)

}  // namespace nestedfp::cuda
