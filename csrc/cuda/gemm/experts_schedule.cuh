// Which tiles of the products of experts a thread block computes, and the schedule and places of either kind of GEMM.
#pragma once

#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/schedule.cuh"

namespace nestedfp::cuda {

// How many token tiles there are, and how many rows each has, is known on the device alone. So one thread of a block
// takes tile after tile from a counter that all blocks share, and hands them to the others through shared memory. Tiles
// are rasterised as the GEMM's: within a group of token tiles by row tile, so that the tiles of one expert share its
// weights, and all tiles the activations.
template <class T>
class TileDealer {
  public:
    NESTEDFP_DEVICE TileDealer(const KernelArgs& args, uint32_t stages)
        : args_(args), stages_(stages), token_tiles_(*args.experts.padded_rows / T::kTokens) {}

    NESTEDFP_DEVICE void run() {
        hand(static_cast<int>(blockIdx.x));
        pdl_wait();  // the kernel before this one may still use the counters
        int* const taken = args_.semaphores;
        for (int phase = 0; is_tile_; phase ^= 1) {
            barrier_wait(stages_ + T::kNextEmpty, phase);
            hand(args_.plan.blocks + add_acquire_release(taken, 1));
        }
        if (add_acquire_release(taken + 1, 1) == args_.plan.blocks - 1) taken[0] = taken[1] = 0;
    }

  private:
    NESTEDFP_DEVICE void hand(int number) {
        const GemmPlan& plan = args_.plan;
        is_tile_ = number < token_tiles_ * plan.row_tiles;
        if (is_tile_) {
            const int group = number / plan.raster_group_tiles, in_group = number - group * plan.raster_group_tiles;
            const int first = group * plan.raster_group;
            const int tiles = min(int{plan.raster_group}, token_tiles_ - first);
            const int row_tile = in_group / tiles;
            const int token_tile = first + in_group - row_tile * tiles;
            store_shared_int(stages_ + T::kNext + 4, width(token_tile));
            number = token_tile * plan.row_tiles + row_tile;
        }
        store_shared_int(stages_ + T::kNext, is_tile_ ? number : -1);
        barrier_arrive(stages_ + T::kNextFull);
    }

    NESTEDFP_DEVICE int width(int token_tile) const {
        const int* const ids = args_.experts.row_ids + token_tile * T::kTokens;
        int found = 1;
#pragma unroll
        for (int i = 1; i < T::kWidths; ++i) found += __ldcg(ids + i * (T::kTokens / T::kWidths)) < args_.experts.valid;
        return found;
    }

    const KernelArgs& args_;
    uint32_t stages_;
    int token_tiles_;
    bool is_tile_ = true;
};

// For all others of the block: the tiles as they are handed out.
template <class T>
class ExpertsSchedule {
  public:
    NESTEDFP_DEVICE ExpertsSchedule(const KernelArgs& args, uint32_t stages) : args_(args), stages_(stages) {}

    NESTEDFP_DEVICE bool next(Work& work) {
        barrier_wait(stages_ + T::kNextFull, phase_);
        phase_ ^= 1;
        work = {load_shared_int(stages_ + T::kNext),    0, args_.plan.steps, 0, 1,
                load_shared_int(stages_ + T::kNext + 4)};
        // Of a producer's warp one thread has come here. The arrival may overtake the loads (consumer.cuh), but what
        // overwrites them first waits for all arrivals and then for global memory.
        if (threadIdx.x >= 128) __syncwarp();
        if (threadIdx.x % 32 < kArrivalsPerWarp) barrier_arrive(stages_ + T::kNextEmpty);
        return work.tile >= 0;
    }

    static constexpr int kArrivals = T::kProducerWarps + 4 * kArrivalsPerWarp * T::kConsumers;

  private:
    const KernelArgs& args_;
    uint32_t stages_;
    int phase_ = 0;
};

template <class T>
NESTEDFP_DEVICE auto schedule_of(const KernelArgs& args, uint32_t stages, int rank) {
    if constexpr (T::kExperts) {
        return ExpertsSchedule<T>(args, stages);
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
