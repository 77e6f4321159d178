#include <array>
#include <utility>

#include "cuda/kernels/launch_kernel.h"
#include "cuda/portable/gemm.cuh"
#include "cuda/portable/launch.h"

namespace nestedfp::cuda {
namespace {

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm)
    portable_kernel(const __grid_constant__ PortableArgs args) {
    portable_gemm<Traits>(args);
}

using Kernel = void (*)(PortableArgs);

template <PortableOperands Operands, int... Tiles>
constexpr std::array<Kernel, kPortableTileCount> kernels_of(std::integer_sequence<int, Tiles...>) {
    return {portable_kernel<PortableTraits<Operands, Tiles>>...};
}

Kernel kernel_of(PortableOperands operands, int tile) {
    constexpr auto kTiles = std::make_integer_sequence<int, kPortableTileCount>{};
    static constexpr std::array<std::array<Kernel, kPortableTileCount>, kPortableOperands> kKernels = {
        kernels_of<PortableOperands::kExact>(kTiles), kernels_of<PortableOperands::kUpperFp16>(kTiles),
        kernels_of<PortableOperands::kFp8>(kTiles)};
    return kKernels[static_cast<int>(operands)][tile];
}

}  // namespace

int prepare_portable(bool has_fp8) {
    for (int operands = 0; operands < kPortableOperands; ++operands) {
        if (static_cast<PortableOperands>(operands) == PortableOperands::kFp8 && !has_fp8) continue;
        for (int tile = 0; tile < kPortableTileCount; ++tile) {
            const auto kind = static_cast<PortableOperands>(operands);
            const cudaError_t error =
                cudaFuncSetAttribute(kernel_of(kind, tile), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     portable_shared_bytes(kind, kPortableTiles[tile]));
            if (error != cudaSuccess) return error;
        }
    }
    return prepare_semaphores();
}

int run_portable(const GemmDesc& desc, PortableOperands operands, const PortablePlan& plan, const GemmArgs& args,
                 cudaStream_t stream, const char** message) {
    const PortableArgs kernel_args{
        args, desc.m, desc.n, desc.k, upper_pitch(desc.k), lower_row_blocks(desc.n), lower_col_blocks(desc.k), plan};
    const PortableTile& tile = kPortableTiles[plan.tile];
    const Launch launch{plan.blocks(), tile.threads(), portable_shared_bytes(operands, tile), 1, false, stream};
    const cudaError_t error = launch_kernel(kernel_of(operands, plan.tile), launch, kernel_args);
    if (error != cudaSuccess) *message = cudaGetErrorString(error);
    return error;
}

}  // namespace nestedfp::cuda
