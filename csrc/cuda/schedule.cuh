// Which tiles a thread block computes, in which order, and where it is in its rings of stages.
#pragma once

#include "gemm.h"
#include "ptx.cuh"

namespace nestedfp::cuda {

// The share of one tile that a thread block computes.
struct Work {
    int row_tile, token_tile;
    int first_step, steps;
    int split_tile;  // index among the tiles that are computed in parts; -1: this one is computed whole
    int part;
};

// Walks a thread block's share of the tiles; producer and consumers walk in lockstep. Whole tiles first, then parts of
// split ones. With a cluster that is at most one part, since its partial sums reuse the pipeline's memory.
//
// Tiles are numbered by groups of token tiles, within a group by row tile, within a row tile by token tile: the blocks
// that run at the same time share their weights and, as far as they fit into L2, their activations.
class Schedule {
  public:
    NESTEDFP_DEVICE Schedule(const GemmPlan& plan, int rank) : plan_(plan), rank_(rank), next_(blockIdx.x) {}

    NESTEDFP_DEVICE bool next(Work& work) {
        if (next_ < plan_.whole_tiles) {
            locate(work, next_);
            next_ += plan_.blocks;
            work.first_step = 0;
            work.steps = plan_.steps;
            work.split_tile = -1;
            work.part = 0;
            return true;
        }
        int parts;
        if (plan_.parts > 1) {
            parts = plan_.parts;
            const int index = next_ - plan_.whole_tiles;
            work.split_tile = index / parts;
            work.part = index - work.split_tile * parts;
            next_ += plan_.blocks;
        } else {
            parts = plan_.cluster;
            if (parts == 1 || is_done_) return false;
            is_done_ = true;
            work.split_tile = static_cast<int>(blockIdx.x) / parts;
            work.part = rank_;
        }
        const int tile = plan_.whole_tiles + work.split_tile;
        if (tile >= plan_.tiles) return false;
        locate(work, tile);
        work.first_step = work.part * plan_.steps / parts;
        work.steps = (work.part + 1) * plan_.steps / parts - work.first_step;
        return true;
    }

  private:
    NESTEDFP_DEVICE void locate(Work& work, int tile) const {
        const int group_tiles = plan_.group * plan_.row_tiles;
        const int group = tile / group_tiles, in_group = tile - group * group_tiles;
        const int first_token_tile = group * plan_.group;
        const int width = min(plan_.group, plan_.token_tiles - first_token_tile);
        work.row_tile = in_group / width;
        work.token_tile = first_token_tile + in_group - work.row_tile * width;
    }

    const GemmPlan& plan_;
    int rank_, next_;
    bool is_done_ = false;
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
