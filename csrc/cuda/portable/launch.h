// What the portable GEMM (gemm.cuh) is launched with, on a stream of the current device, and what its kernel knows of
// its tile when it is compiled.
#pragma once

#include <cstdint>

#include "cuda/host/launch.h"
#include "cuda/portable/plan.h"

namespace nestedfp::cuda {

// x_pitch is a multiple of 8; lower: of exact weights only; semaphores: only for a plan that is split.
struct PortableArgs : GemmArgs {
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

// Loads every kernel that the current device can run, and allocates semaphores. Returns a cudaError_t.
int prepare_portable(bool has_fp8);

// As run_gemm: never synchronises, allocates nothing. args.x rows x_pitch elements apart, a multiple of 8, and aligned
// to 16 bytes. Returns a cudaError_t; on an error *message says what was wrong.
int run_portable(const GemmDesc& desc, PortableOperands operands, const PortablePlan& plan, const GemmArgs& args,
                 CUstream_st* stream, const char** message);

}  // namespace nestedfp::cuda
