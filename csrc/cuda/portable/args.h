// What the portable GEMM's kernel is launched with, and what it knows of its tile when it is compiled.
#pragma once

#include <cstdint>

#include "cuda/config/outlier_list.h"
#include "cuda/portable/plan.h"

namespace nestedfp::cuda {

struct PortableArgs {
    // [M, K] FP16, rows x_pitch elements apart, a multiple of 8; or codes [M, upper_pitch(K)] with token_scale [M].
    const void* x;
    int64_t x_pitch;
    const float* token_scale;
    // Packed (cuda/kernels/layout.h), aligned to 16 bytes. lower: exact weights only.
    const uint8_t* upper;
    const uint8_t* lower;
    // [N] FP16 or null.
    const uint16_t* bias;
    // [M, N] FP16, contiguous.
    uint16_t* out;
    OutlierList outliers;
    // portable_workspace_bytes().
    float* workspace;
    // A zero for each tile, left as zeros; only for a plan that is split.
    int* semaphores;
    int64_t m, n, k;
    int64_t upper_pitch, lower_row_blocks, lower_col_blocks;
    PortablePlan plan;
};

// Where chunk `chunk` of 16 bytes, of the four of a row of E4M3 in shared memory, lies in it: the same chunk of eight
// rows, 64 bytes apart, is in different banks. row: % 8.
NESTEDFP_HOST_DEVICE constexpr int portable_code_chunk(unsigned chunk, unsigned row) {
    return static_cast<int>(chunk ^ row / 2);
}

template <PortableOperands Operands, int Tile>
struct PortableTraits {
    static constexpr PortableTile kTile = kPortableTiles[Tile];
    static constexpr bool kHasLower = Operands == PortableOperands::kExact;
    static constexpr bool kIsFp8 = Operands == PortableOperands::kFp8;
    static constexpr int kRows = kTile.rows(), kTokens = kTile.tokens(), kThreads = kTile.threads();
    static constexpr int kTokenWarps = kTile.token_warps;
    static constexpr int kRowFrags = kTile.row_frags, kTokenFrags = kTile.token_frags;
    static constexpr int kStages = kTile.stages, kBlocksPerSm = kTile.blocks_per_sm;
    static constexpr int kStepBlocks = portable_step_blocks(Operands);
    static constexpr int kLowerOffset = kRows * kBlockCols * kStepBlocks;
    static constexpr int kXOffset = kLowerOffset + (kHasLower ? kRows * kBlockCols : 0);
    static constexpr int kStageBytes = portable_stage_bytes(Operands, kTile);
    static_assert(kXOffset + kTokens * 128 == kStageBytes);
};

}  // namespace nestedfp::cuda
