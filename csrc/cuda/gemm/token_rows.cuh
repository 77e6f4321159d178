// Which row of D a token of a tile is.
#pragma once

#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"

namespace nestedfp::cuda {

// `token` of the tile; -1: none, since the tile is wider than the rows. A mixed tile holds exact rows, then fast ones.
template <class T>
NESTEDFP_DEVICE int output_row(const KernelArgs& args, int token_tile, int token) {
    if constexpr (T::kExact == 0) {
        const int row = token_tile * T::kTokens + token;
        return row < args.m ? row : -1;
    } else {
        if (token < T::kExact) return token < args.exact_rows ? token : -1;
        const int fast = token - T::kExact;
        return fast < args.fast_rows ? args.exact_rows + fast : -1;
    }
}

}  // namespace nestedfp::cuda
