// Which row of D a token of a tile is, and a store to it.
#pragma once

#include <cuda_fp16.h>

#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"

namespace nestedfp::cuda {

// `token` of the tile; -1: none, since the tile is wider than the rows. A mixed tile holds exact rows, then fast ones.
template <class T>
NESTEDFP_DEVICE int output_row(const KernelArgs& args, int token_tile, int token) {
    if constexpr (T::kExperts) {
        const int row = __ldcg(args.experts.row_ids + token_tile * T::kTokens + token);
        return row < args.experts.valid ? row : -1;
    } else if constexpr (T::kExact == 0) {
        const int row = token_tile * T::kTokens + token;
        return row < args.m ? row : -1;
    } else {
        if (token < T::kExact) return token < args.exact_rows ? token : -1;
        const int fast = token - T::kExact;
        return fast < args.fast_rows ? args.exact_rows + fast : -1;
    }
}

// Eight neighbouring outputs of one row of D.
NESTEDFP_DEVICE void store_outputs(const KernelArgs& args, uint4 piece, int row, int feature) {
    if (feature >= args.n) return;
    __half* const to = args.out + static_cast<int64_t>(row) * args.n + feature;
    if (args.n % 8 == 0) {
        *reinterpret_cast<uint4*>(to) = piece;
        return;
    }
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t bits = words[i / 2] >> (i % 2 * 16);
        if (feature + i < args.n) to[i] = __ushort_as_half(static_cast<unsigned short>(bits));
    }
}

}  // namespace nestedfp::cuda
