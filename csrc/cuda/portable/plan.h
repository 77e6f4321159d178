// How the portable GEMM cuts a problem into thread blocks. Pure and host only: tested without CUDA.
#pragma once

#include <cstdint>

#include "cuda/portable/tile.h"

namespace nestedfp::cuda {

struct PortablePlan {
    // Index into kPortableTiles.
    int tile;
    // Parts of K, a thread block each; their sums are added in the order of K.
    int split;
    int row_tiles, token_tiles;
    // Pipeline stages along K.
    int steps;
    // Token tiles that follow each other before the next row tile: the weights of one, in L2, serve them all.
    int raster_group;

    NESTEDFP_HOST_DEVICE constexpr int tiles() const { return row_tiles * token_tiles; }
    NESTEDFP_HOST_DEVICE constexpr int blocks() const { return tiles() * split; }
};

// Which tile of the grid, and which steps of K, a thread block computes.
struct PortableWork {
    int row_tile, token_tile;
    int tile, part;
    int first_step, last_step;
};

NESTEDFP_HOST_DEVICE constexpr PortableWork portable_work(const PortablePlan& plan, int block) {
    PortableWork work{};
    work.tile = block / plan.split;
    work.part = block - work.tile * plan.split;
    const int group_tiles = plan.row_tiles * plan.raster_group;
    const int group = work.tile / group_tiles, in_group = work.tile - group * group_tiles;
    const int first = group * plan.raster_group, left = plan.token_tiles - first;
    const int width = left < plan.raster_group ? left : plan.raster_group;
    work.row_tile = in_group / width;
    work.token_tile = first + in_group - work.row_tile * width;
    work.first_step = static_cast<int>(static_cast<int64_t>(work.part) * plan.steps / plan.split);
    work.last_step = static_cast<int>(static_cast<int64_t>(work.part + 1) * plan.steps / plan.split);
    return work;
}

// The plan for D[M,N] = X[M,K] @ W[N,K]^T by a rule of thumb that no card was timed for: what the busiest
// multiprocessor loads and multiplies, with the memory and tensor throughput of an A100.
PortablePlan plan_portable(PortableOperands operands, int64_t m, int64_t n, int64_t k, int num_sms);

// A plan with this tile and this many parts.
PortablePlan cut_portable(PortableOperands operands, int64_t m, int64_t n, int64_t k, int tile, int split);

// Bytes of FP32 sums that the parts leave for the last of them.
int64_t portable_workspace_bytes(const PortablePlan& plan);

}  // namespace nestedfp::cuda
