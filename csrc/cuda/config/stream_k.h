// Stream-K: the steps of all tiles that are computed in parts are dealt out to thread blocks in equal runs, work units,
// whatever the borders of tiles (Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU", PPoPP 2023). Split-K with a global workspace is the case in which every tile has as many
// work units. Plain functions of block and plan, so that they are tested without a GPU.
//
// The block of a tile's last part reduces the partial sums of the others and waits for them: blocks of lower numbers,
// which the hardware starts before it.
//
// Blocks begin at step 0 of K, whatever their work unit: whole tiles first, then the first part of the tile that ends
// the unit, at last what the unit has of the tile that begins it. So at any time they are close to each other in K and
// share activations in L2; in the order of the unit they would be all over K, and the L2 would have to hold the
// activations of all of it, which it does not beside the weights that stream by (33 MB at 512 tokens and K = 32768). A
// tile's first parts are done long before its last one, so nobody waits.
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

// Partial sums that a block may leave: of the first part of the tile that ends its work unit, and, where the last block
// to arrive reduces, of the part that begins it.
inline constexpr int kSlotsPerBlock = 2;

inline constexpr int kFirstPart = -1, kNoPart = -2;

// The next part of a block's work unit. `position` is kFirstPart before the first. False at the end.
NESTEDFP_PLAIN bool next_part(const GemmPlan& plan, int block, int& position, Part& part) {
    const int unit = block / plan.columns;
    if (unit >= plan.work_units || position == kNoPart) return false;
    const int begin = unit * plan.column_steps / plan.work_units;
    const int end = (unit + 1) * plan.column_steps / plan.work_units;
    const int border = (begin + plan.steps - 1) / plan.steps * plan.steps;
    const int start = border < end ? border : end;
    int from = position == kFirstPart ? start : position, to = end;
    if (from == end) {
        position = kNoPart;
        if (begin == start) return false;
        from = begin, to = start;
    }
    const int row = from / plan.steps, row_begin = row * plan.steps, row_end = row_begin + plan.steps;
    if (row_end < to) to = row_end;
    if (position != kNoPart) position = to;
    part.tile = row * plan.columns + block - unit * plan.columns;
    part.first_step = from - row_begin;
    part.steps = to - from;
    // Step s lies in the last work unit that begins at s or before: ((s + 1) * work_units - 1) / column_steps.
    const int first_unit = ((row_begin + 1) * plan.work_units - 1) / plan.column_steps;
    part.index = unit - first_unit;
    part.count = (row_end * plan.work_units - 1) / plan.column_steps - first_unit + 1;
    return true;
}

}  // namespace nestedfp::cuda
