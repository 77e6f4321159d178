// Which tiles a thread block computes, in which order, and where it is in its rings of stages.
#pragma once

#include "cuda/config/gemm.h"
#include "cuda/config/stream_k.h"
#include "cuda/gemm/ptx.cuh"

namespace nestedfp::cuda {

// What a thread block computes of one tile.
struct Work {
    int tile;
    int first_step, steps;
    int part, parts;  // of the tile's parts, which the epilogue reduces; 0 of 1: the whole tile
    int width = 1;    // of experts: of T::kWidths parts of its tokens, those with rows, which come first
};

struct TilePosition {
    int row_tile, token_tile;
};

// CTA rasterisation: tiles are numbered by groups of token tiles, within a group by row tile, within a row tile by
// token tile. The blocks that run at the same time share their weights and, as far as they fit into L2, their
// activations.
NESTEDFP_DEVICE TilePosition locate(const GemmPlan& plan, int tile) {
    const int group = tile / plan.raster_group_tiles, in_group = tile - group * plan.raster_group_tiles;
    const int first_token_tile = group * plan.raster_group;
    const Divisor& width =
        first_token_tile + plan.raster_group < plan.token_tiles ? plan.raster_group : plan.last_raster_group;
    const int row_tile = in_group / width;
    return {row_tile, first_token_tile + in_group - row_tile * width};
}

// This block's number among those of the plan, or its multicast cluster's.
template <int MulticastCtas>
NESTEDFP_DEVICE int scheduled_block(const GemmPlan& plan) {
    return static_cast<int>(blockIdx.x) / MulticastCtas - plan.first_block;
}

// Hands out the work of a thread block; producer and consumers ask in lockstep. Whole tiles first, then parts of
// split ones: with a cluster at most one, since its partial sums reuse the pipeline's memory.
template <int MulticastCtas>
class Schedule {
  public:
    NESTEDFP_DEVICE Schedule(const GemmPlan& plan, int rank)
        : plan_(plan), rank_(rank), next_(scheduled_block<MulticastCtas>(plan)) {}

    NESTEDFP_DEVICE bool next(Work& work) {
        if (next_ < plan_.whole_tiles) {
            work = {next_, 0, plan_.steps, 0, 1};
            next_ += plan_.blocks;
            return true;
        }
        return plan_.work_units > 0 ? next_of_work_unit(work) : plan_.cluster > 1 && part_of_cluster(work);
    }

  private:
    NESTEDFP_DEVICE bool part_of_cluster(Work& work) {
        const int tile = plan_.whole_tiles + static_cast<int>(blockIdx.x) / plan_.cluster;
        if (position_ >= 0 || tile >= plan_.tiles) return false;
        position_ = 0;
        const int first = rank_ * plan_.steps / plan_.cluster;
        work = {tile, first, (rank_ + 1) * plan_.steps / plan_.cluster - first, rank_, plan_.cluster};
        return true;
    }

    NESTEDFP_DEVICE bool next_of_work_unit(Work& work) {
        Part part;
        if (!next_part(plan_, scheduled_block<MulticastCtas>(plan_), position_, part)) return false;
        work = {plan_.whole_tiles + part.tile, part.first_step, part.steps, part.index, part.count};
        return true;
    }

    const GemmPlan& plan_;
    int rank_, next_;
    int position_ = kFirstPart;  // in the steps of a column
};

// Arrivals of a warp that has done with a stage. One, of its first lane, unless built for compute-sanitizer: racecheck
// takes an arrival to speak for its own lane only.
#ifdef NESTEDFP_RACECHECK
inline constexpr int kArrivalsPerWarp = 32;
#else
inline constexpr int kArrivalsPerWarp = 1;
#endif

// Position in the ring of stages. Phases: the parity that a wait on this stage's barrier expects.
template <int Stages>
struct RingPosition {
    int stage = 0;
    int phase;
    NESTEDFP_DEVICE explicit RingPosition(int first_phase) : phase(first_phase) {}
    NESTEDFP_DEVICE void advance() {
        if (++stage == Stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

}  // namespace nestedfp::cuda
