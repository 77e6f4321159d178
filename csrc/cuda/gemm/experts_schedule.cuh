// Which tiles of the products of experts a thread block computes, and the schedule and places of either kind of GEMM.
#pragma once

#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/schedule.cuh"

namespace nestedfp::cuda {

// How many token tiles there are is known on the device alone. Rasterised as the GEMM's: within a group of token tiles
// by row tile, so that the tiles of one expert share its weights, and all tiles the activations.
template <int Tokens>
class ExpertsSchedule {
  public:
    NESTEDFP_DEVICE explicit ExpertsSchedule(const KernelArgs& args)
        : plan_(args.plan), token_tiles_(*args.experts.padded_rows / Tokens), next_(static_cast<int>(blockIdx.x)) {}

    NESTEDFP_DEVICE bool next(Work& work) {
        if (next_ >= token_tiles_ * plan_.row_tiles) return false;
        const int group = next_ / plan_.raster_group_tiles, in_group = next_ - group * plan_.raster_group_tiles;
        const int first = group * plan_.raster_group;
        const int width = min(int{plan_.raster_group}, token_tiles_ - first);
        const int row_tile = in_group / width;
        work = {(first + in_group - row_tile * width) * plan_.row_tiles + row_tile, 0, plan_.steps, 0, 1};
        next_ += plan_.blocks;
        return true;
    }

  private:
    const GemmPlan& plan_;
    int token_tiles_, next_;
};

template <class T>
NESTEDFP_DEVICE auto schedule_of(const KernelArgs& args, int rank) {
    if constexpr (T::kExperts) {
        return ExpertsSchedule<T::kTokens>(args);
    } else {
        return Schedule<T::kMulticastCtas>(args.plan, rank);
    }
}

template <class T>
NESTEDFP_DEVICE TilePosition place_of(const KernelArgs& args, const Work& work) {
    if constexpr (T::kExperts) {
        const int token_tile = work.tile / args.plan.row_tiles;
        return {work.tile - token_tile * args.plan.row_tiles, token_tile};
    } else {
        return locate(args.plan, work.tile);
    }
}

// The first column of D that a row tile computes.
template <class T>
NESTEDFP_DEVICE int first_column(const KernelArgs& args, int row_tile) {
    if constexpr (T::kExperts) return row_tile * (args.experts.is_gated ? T::kRows / 2 : T::kRows);
    return row_tile * (T::kMulticastCtas * T::kRows);
}

}  // namespace nestedfp::cuda
