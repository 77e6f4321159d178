// Stream-K: the steps of all tiles that are computed in parts are dealt out to thread blocks in equal runs, work units,
// whatever the borders of tiles (Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU", PPoPP 2023). Split-K with a global workspace is the case in which every tile has as many
// work units. Plain functions of block and plan, so that they are tested without a GPU.
//
// Work units are numbered against the blocks: the block of a tile's first part, which reduces the partial sums of the
// others, waits for lower blocks only, and the hardware starts those before it. Within a work unit the part that
// another block reduces comes first and the tile to reduce last, when the others' sums are there or about to be.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// A run of steps within one tile.
struct Part {
    // Among those that are computed in parts.
    int tile;
    int first_step, steps;
    // Which of the tile's parts, of how many; of 1: this is the whole tile.
    int index, count;
};

// Partial sums that a block may leave: of the part that begins its work unit, and of the first part of the tile that
// ends it.
inline constexpr int kSlotsPerBlock = 2;

// A block's column and work unit as one number; negative if it has none. The blocks of a tile's parts are plan.columns
// apart.
NESTEDFP_PLAIN int work_unit_of(const GemmPlan& plan, int block) {
    const int row = block / plan.columns;
    return (plan.work_units - 1 - row) * plan.columns + block - row * plan.columns;
}

// The next part of a block's work unit. `position` is -1 before the first. False at the end.
NESTEDFP_PLAIN bool next_part(const GemmPlan& plan, int block, int& position, Part& part) {
    const int number = work_unit_of(plan, block);
    if (number < 0) return false;
    const int unit = number / plan.columns, column = number - unit * plan.columns;
    const int end = (unit + 1) * plan.column_steps / plan.work_units;
    if (position < 0) position = unit * plan.column_steps / plan.work_units;
    if (position == end) return false;
    const int row = position / plan.steps, row_begin = row * plan.steps, row_end = row_begin + plan.steps;
    part.tile = row * plan.columns + column;
    part.first_step = position - row_begin;
    part.steps = (row_end < end ? row_end : end) - position;
    position += part.steps;
    // Step s lies in the last work unit that begins at s or before: ((s + 1) * work_units - 1) / column_steps.
    const int first_unit = ((row_begin + 1) * plan.work_units - 1) / plan.column_steps;
    part.index = unit - first_unit;
    part.count = (row_end * plan.work_units - 1) / plan.column_steps - first_unit + 1;
    return true;
}

}  // namespace nestedfp::cuda
