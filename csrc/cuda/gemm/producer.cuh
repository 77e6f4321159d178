// The producer warpgroup: one warp per operand feeds the rings through TMA; of experts, the fourth hands out tiles.
#pragma once

#include "cuda/gemm/experts_schedule.cuh"
#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

template <class T>
NESTEDFP_DEVICE void produce_activations(const CUtensorMap& x_map, const KernelArgs& args, uint32_t stages, int rank) {
    auto schedule = schedule_of<T>(args, stages, rank);
    RingPosition<T::kXStages> ring(1);
    Work work;
    while (schedule.next(work)) {
        int token = place_of<T>(args, work).token_tile * T::kTokens;
        if constexpr (T::kMulticastCtas == 2) token += rank * (T::kTokens / 2);
        int slice = work.first_step * T::kKWarpgroups;
        const int boxes = T::kExperts && work.width <= T::kWidths / 2 ? 1 : T::kXBoxes;
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) {
            const uint32_t stage = stages + ring.stage * T::kXStageBytes;
            const uint32_t barrier = stages + T::kXFull + ring.stage * 8;
            barrier_wait(stages + T::kXEmpty + ring.stage * 8, ring.phase);
            barrier_arrive_expect(barrier, T::kXStageBytes / T::kXBoxes * boxes);
#pragma unroll
            for (int i = 0; i < T::kKWarpgroups; ++i) {
                const uint32_t to = stage + i * T::kXBytes;
                const int col = (slice + i) * T::kSliceCols;
                if constexpr (T::kMulticastCtas == 2) {
                    load_box_multicast(to + rank * (T::kXBytes / 2), &x_map, barrier, col, token, args.x_policy);
                } else {
#pragma unroll
                    for (int box = 0; box < T::kXBoxes; ++box) {
                        constexpr int kTokens = T::kBoxTokens;
                        if (box < boxes)
                            load_box(to + box * kTokens * 128, &x_map, barrier, col, token + box * kTokens,
                                     args.x_policy);
                    }
                }
            }
            slice += T::kKWarpgroups;
            ring.advance();
        }
    }
}

template <class T>
NESTEDFP_DEVICE void produce_weights(int operand, const CUtensorMap& upper_map, const CUtensorMap& lower_map,
                                     const KernelArgs& args, uint32_t stages, int rank) {
    auto schedule = schedule_of<T>(args, stages, rank);
    RingPosition<T::kWeightStages> ring(1);
    Work work;
    while (schedule.next(work)) {
        const TilePosition place = place_of<T>(args, work);
        int row = first_column<T>(args, place.row_tile);
        if constexpr (T::kMulticastCtas == 2) row += rank * T::kRows;
        if constexpr (T::kExperts)
            row += args.experts.tile_experts[place.token_tile] * (args.experts.is_gated ? 2 * args.n : args.n);
        int slice = work.first_step * T::kKWarpgroups;
        const uint8_t* lower[T::kRowWarpgroups];
#pragma unroll
        for (int i = 0; i < T::kRowWarpgroups; ++i) {
            const int block = min(row / 64 + i, args.lower_row_blocks - 1);
            lower[i] = args.lower + block * args.lower_row_stride + slice * args.lower_col_stride;
        }
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) {
            const uint32_t stage = stages + T::kWeightsOffset + ring.stage * T::kWeightStageBytes;
            const uint32_t barrier = stages + T::kWeightsFull + ring.stage * 8;
            barrier_wait(stages + T::kWeightsEmpty + ring.stage * 8, ring.phase);
            if constexpr (T::kExperts) {  // whose lower plane is a matrix as well
                const CUtensorMap* const map = operand == 1 ? &upper_map : &lower_map;
                const uint32_t to = operand == 1 ? stage : stage + T::kLowerOffset;
                barrier_arrive_expect(barrier, T::kUpperBytes);
                if (args.experts.is_gated) {
#pragma unroll
                    for (int i = 0; i < T::kRows / 128; ++i)
                        load_box_5d(to + i * 128 * 64, map, barrier, slice * 64, row + i * 64, args.weight_policy);
                } else {
                    load_box(to, map, barrier, slice * 64, row, args.weight_policy);
                }
            } else if (operand == 1) {
                barrier_arrive_expect(barrier, T::kKWarpgroups * T::kUpperBytes);
#pragma unroll
                for (int i = 0; i < T::kKWarpgroups; ++i) {
                    load_box(stage + i * T::kUpperBytes, &upper_map, barrier, (slice + i) * T::kSliceCols, row,
                             args.weight_policy);
                }
            } else {
                // K slices of one row block are neighbours in memory and, having one row warpgroup, in the stage too.
                static_assert(T::kKWarpgroups == 1 || T::kRowWarpgroups == 1 || !T::kFp16);
                barrier_arrive_expect(barrier, T::kKWarpgroups * T::kLowerBytes);
#pragma unroll
                for (int i = 0; i < T::kRowWarpgroups; ++i) {
                    load_bytes(stage + T::kLowerOffset + i * kBlockBytes, lower[i], barrier,
                               T::kKWarpgroups * kBlockBytes, args.weight_policy);
                    lower[i] += T::kKWarpgroups * args.lower_col_stride;
                }
            }
            slice += T::kKWarpgroups;
            ring.advance();
        }
    }
}

// One warp per operand, because a thread needs about 165 clocks per TMA instruction: a single issuer would bound small
// tiles.
template <class T>
NESTEDFP_DEVICE void produce(const CUtensorMap& x_map, const CUtensorMap& upper_map, const CUtensorMap& lower_map,
                             const KernelArgs& args, uint32_t stages, int rank) {
    const int operand = threadIdx.x / 32;  // 0: activations, 1: upper, 2: lower
    if (threadIdx.x % 32 != 0) return;
    if constexpr (T::kExperts) {
        if (operand == T::kProducerWarps) return TileDealer<T>(args, stages).run();
    }
    if (operand >= T::kProducerWarps) return;
    if (operand == 0) {
        // Weights do not depend on the kernel before this one, so only the activations wait for it.
        pdl_wait();
        pdl_launch_dependents();
    }
    if (operand == 0) {
        produce_activations<T>(x_map, args, stages, rank);
    } else {
        produce_weights<T>(operand, upper_map, lower_map, args, stages, rank);
    }
}

}  // namespace nestedfp::cuda
