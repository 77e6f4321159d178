// How the steps of the tiles that are computed in parts are dealt out to thread blocks (GemmPlan: shares, columns).
// Plain functions of block and plan, so that they are tested without a GPU.
//
// Shares are numbered against the blocks: the block of a tile's first part, which collects the sums of the others,
// waits for lower blocks only, and the hardware starts those before it. Within a share the part that another block
// collects comes first and the tile to collect last, when the others' sums are there or about to be.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// A run of steps within one tile.
struct Part {
    int tile;  // among those that are computed in parts
    int first_step, steps;
    int index, count;  // which of the tile's parts; 1: this is the whole tile
};

// Partial sums that a block may leave: of the part that begins its share, and of the first part of the tile that ends
// it.
inline constexpr int kSlotsPerBlock = 2;

// A block's column and share as one number; negative if it has no share. The blocks of a tile's parts are plan.columns
// apart.
NESTEDFP_PLAIN int share_number(const GemmPlan& plan, int block) {
    const int row = block / plan.columns;
    return (plan.shares - 1 - row) * plan.columns + block - row * plan.columns;
}

// The next part of a block's share. `position` is -1 before the first. False at the end.
NESTEDFP_PLAIN bool next_part(const GemmPlan& plan, int block, int& position, Part& part) {
    const int number = share_number(plan, block);
    if (number < 0) return false;
    const int share = number / plan.columns, column = number - share * plan.columns;
    const int end = (share + 1) * plan.column_steps / plan.shares;
    if (position < 0) position = share * plan.column_steps / plan.shares;
    if (position == end) return false;
    const int row = position / plan.steps, row_begin = row * plan.steps, row_end = row_begin + plan.steps;
    part.tile = row * plan.columns + column;
    part.first_step = position - row_begin;
    part.steps = (row_end < end ? row_end : end) - position;
    position += part.steps;
    // Step s lies in the last share that begins at s or before, number ((s + 1) * shares - 1) / column_steps.
    const int first_share = ((row_begin + 1) * plan.shares - 1) / plan.column_steps;
    part.index = share - first_share;
    part.count = (row_end * plan.shares - 1) / plan.column_steps - first_share + 1;
    return true;
}

}  // namespace nestedfp::cuda
