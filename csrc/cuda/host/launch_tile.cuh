// Host side of one compiled tile.
#pragma once

#include "cuda/gemm/mixed_sm90.cuh"
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

// The same of the mixed GEMM.
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

// And of the products of experts.
template <int RowWarpgroups, int Tokens>
using ExpertsTraits = TileTraits<Precision::kFp16, RowWarpgroups, 1, Tokens, 1, 1, true>;

template <int RowWarpgroups, int Tokens>
cudaError_t prepare_experts() {
    using T = ExpertsTraits<RowWarpgroups, Tokens>;
    return cudaFuncSetAttribute(experts_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes);
}

template <int RowWarpgroups, int Tokens>
cudaError_t launch_experts(const ExpertsKernelArgs& args, cudaStream_t stream) {
    using T = ExpertsTraits<RowWarpgroups, Tokens>;
    return launch_kernel(experts_sm90<T>, Launch{args.gemm.plan.blocks, T::kThreads, T::kSharedBytes, 1, true, stream},
                         args);
}

#define NESTEDFP_INSTANTIATE_EXPERTS(...)                \
    template cudaError_t prepare_experts<__VA_ARGS__>(); \
    template cudaError_t launch_experts<__VA_ARGS__>(const ExpertsKernelArgs&, cudaStream_t)

#define NESTEDFP_INSTANTIATE_MIXED(...)                \
    template cudaError_t prepare_mixed<__VA_ARGS__>(); \
    template cudaError_t launch_mixed<__VA_ARGS__>(const MixedKernelArgs&, bool, cudaStream_t)

}  // namespace nestedfp::cuda
