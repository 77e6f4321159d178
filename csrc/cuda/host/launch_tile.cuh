// Host side of one compiled tile.
#pragma once

#include "cuda/gemm/gemm_sm90.cuh"
#include "cuda/kernels/launch_kernel.h"

namespace nestedfp::cuda {

// Loads the kernel onto the current device and raises its shared-memory limit.
template <Precision P, int... Tile>
cudaError_t prepare() {
    using T = TileTraits<P, Tile...>;
    return cudaFuncSetAttribute(gemm_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes);
}

template <Precision P, int... Tile>
cudaError_t launch(const CUtensorMap& x_map, const CUtensorMap& upper_map, const KernelArgs& args, bool pdl,
                   cudaStream_t stream) {
    using T = TileTraits<P, Tile...>;
    const int ctas = args.plan.multicast_ctas;
    const Launch launch{args.plan.blocks * ctas, T::kThreads, T::kSharedBytes, args.plan.cluster * ctas, pdl, stream};
    return launch_kernel(gemm_sm90<T>, launch, x_map, upper_map, args);
}

// Compiles one tile, in a file that cuda/generate_tiles.py writes.
#define NESTEDFP_INSTANTIATE(precision, ...)                                                               \
    template cudaError_t prepare<Precision::precision, __VA_ARGS__>();                                     \
    template cudaError_t launch<Precision::precision, __VA_ARGS__>(const CUtensorMap&, const CUtensorMap&, \
                                                                   const KernelArgs&, bool, cudaStream_t)

}  // namespace nestedfp::cuda
