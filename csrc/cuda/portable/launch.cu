#include <array>
#include <utility>

#include "cuda/host/semaphores.h"
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

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

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
    const bool is_fp8 = operands == PortableOperands::kFp8;
    if (!is_aligned(args.x) || (!is_fp8 && args.x_pitch % 8 != 0)) {
        *message = "x must be aligned to 16 bytes, and so must its rows";
        return cudaErrorInvalidValue;
    }
    if (!is_aligned(args.upper) || !is_aligned(args.lower)) {
        *message = "the packed planes must be aligned to 16 bytes";
        return cudaErrorInvalidValue;
    }
    if (plan.split > 1 && (args.workspace == nullptr || args.semaphores == nullptr)) {
        *message = "a split of K needs a workspace and semaphores";
        return cudaErrorInvalidValue;
    }
    PortableArgs kernel_args{};
    kernel_args.x = args.x;
    kernel_args.x_pitch = args.x_pitch;
    kernel_args.token_scale = args.token_scale;
    kernel_args.upper = args.upper;
    kernel_args.lower = args.lower;
    kernel_args.bias = static_cast<const uint16_t*>(args.bias);
    kernel_args.out = static_cast<uint16_t*>(args.out);
    kernel_args.outliers = args.outliers;
    kernel_args.workspace = args.workspace;
    kernel_args.semaphores = args.semaphores;
    kernel_args.m = desc.m;
    kernel_args.n = desc.n;
    kernel_args.k = desc.k;
    kernel_args.upper_pitch = upper_pitch(desc.k);
    kernel_args.lower_row_blocks = lower_row_blocks(desc.n);
    kernel_args.lower_col_blocks = lower_col_blocks(desc.k);
    kernel_args.plan = plan;
    const PortableTile& tile = kPortableTiles[plan.tile];
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(plan.blocks()));
    config.blockDim = dim3(static_cast<unsigned>(tile.threads()));
    config.dynamicSmemBytes = static_cast<size_t>(portable_shared_bytes(operands, tile));
    config.stream = stream;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel_of(operands, plan.tile), kernel_args);
    if (error != cudaSuccess) *message = cudaGetErrorString(error);
    return error;
}

}  // namespace nestedfp::cuda
