// The tiles of the portable GEMM (gemm.cuh) as data, and which operands it multiplies.
#pragma once

#include <iterator>

#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

enum class PortableOperands {
    // Both planes, decoded to the exact FP16 weights, times FP16 activations.
    kExact,
    // The FP8 weights as FP16 numbers, times FP16 activations: FP8 mode where mma.sync knows no FP8. Half the bytes,
    // the
    // same arithmetic.
    kUpperFp16,
    // E4M3 times E4M3, one scale per token: FP8 mode on compute capability 8.9 and 12.x.
    kFp8,
};

inline constexpr int kPortableOperands = 3;

// Warps stand in row_warps x token_warps; each multiplies row_frags x 16 output features by token_frags x 8 tokens.
struct PortableTile {
    int row_warps, token_warps;
    int row_frags, token_frags;
    // Of the ring in shared memory.
    int stages;
    // That registers and 99 KiB of shared memory, the least of any GPU from compute capability 8.0 on, have room for.
    int blocks_per_sm;

    NESTEDFP_HOST_DEVICE constexpr int rows() const { return row_warps * row_frags * 16; }
    NESTEDFP_HOST_DEVICE constexpr int tokens() const { return token_warps * token_frags * 8; }
    NESTEDFP_HOST_DEVICE constexpr int threads() const { return row_warps * token_warps * 32; }
    // FP32 sums of a thread.
    NESTEDFP_HOST_DEVICE constexpr int sums() const { return row_frags * token_frags * 4; }
};

inline constexpr PortableTile kPortableTiles[] = {
    {4, 1, 1, 1, 5, 2}, {4, 1, 1, 2, 4, 2}, {4, 1, 1, 4, 4, 2}, {4, 1, 1, 8, 3, 2}, {4, 2, 2, 8, 3, 1},
};

inline constexpr int kPortableTileCount = static_cast<int>(std::size(kPortableTiles));

// Blocks of 64 columns that a stage holds: 128 bytes of activations for each token.
NESTEDFP_HOST_DEVICE constexpr int portable_step_blocks(PortableOperands operands) {
    return operands == PortableOperands::kFp8 ? 2 : 1;
}

NESTEDFP_HOST_DEVICE constexpr int portable_stage_bytes(PortableOperands operands, const PortableTile& tile) {
    const int planes = operands == PortableOperands::kUpperFp16 ? 1 : 2;  // FP8: two blocks of one plane
    return tile.rows() * kBlockCols * planes + tile.tokens() * 128;
}

NESTEDFP_HOST_DEVICE constexpr int portable_shared_bytes(PortableOperands operands, const PortableTile& tile) {
    return portable_stage_bytes(operands, tile) * tile.stages;
}

constexpr bool portable_tiles_fit() {
    for (const PortableTile& tile : kPortableTiles) {
        const int bytes =
            portable_shared_bytes(PortableOperands::kExact, tile) + 1024;  // 1 KiB a block is the system's
        if (tile.rows() % kBlockRows != 0 || bytes * tile.blocks_per_sm > 100 << 10) return false;
    }
    return true;
}

static_assert(portable_tiles_fit(), "whole blocks of the lower plane, and room on the smallest multiprocessor");

}  // namespace nestedfp::cuda
