// The compiled tiles as functions, by position in tiles.inc.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gemm/kernel_args.h"

namespace nestedfp::cuda {

struct TileFunctions {
    cudaError_t (*prepare)();
    cudaError_t (*launch)(const CUtensorMap& x_map, const CUtensorMap& upper_map, const KernelArgs& args, bool pdl,
                          cudaStream_t stream);
};

TileFunctions tile_functions(int index);

struct MixedTileFunctions {
    cudaError_t (*prepare)();
    cudaError_t (*launch)(const MixedKernelArgs& args, bool pdl, cudaStream_t stream);
};

// By position in mixed_tiles.inc.
MixedTileFunctions mixed_tile_functions(int index);

}  // namespace nestedfp::cuda
