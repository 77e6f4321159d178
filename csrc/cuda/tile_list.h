// One launcher per compiled tile. tiles_*.cu instantiate them, each file a few, so that they compile in parallel.
#pragma once

#include <cuda_runtime.h>

#include "kernel_args.h"

namespace nestedfp::cuda {

using TileLauncher = cudaError_t (*)(const CUtensorMap& x_map, const CUtensorMap& upper_map, const KernelArgs& args, int split,
                                     bool early_start, cudaStream_t stream);

TileLauncher tile_launcher(int index);

}  // namespace nestedfp::cuda
