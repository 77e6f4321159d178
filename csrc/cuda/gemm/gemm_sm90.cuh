// D[M,N] = X[M,K] @ W[N,K].T on Hopper, one kernel template for both precisions.
//
// A thread block is one producer warpgroup, of which a warp feeds each operand through TMA, and row_warpgroups x
// k_warpgroups consumer warpgroups. Tokens are wgmma's N operand, so every M from 1 up costs what it must. Weights are
// its M operand:
//
// clang-format off
//   FP16  Both planes go from shared memory to registers, are decoded there (decode.cuh) and enter wgmma as register
//         operand A. The decode of stage k + 1 is interleaved with the wgmmas of stage k, and the shared-memory reads run
//         one more stage ahead.
//   FP8   The upper plane is operand A straight from shared memory.
// clang-format on
//
// Split-K and Stream-K (config/gemm.h): partial sums are reduced in a fixed order (epilogue.cuh), so that results do
// not depend on timing. Multicast tiles (config/tiles.h) load the activations of two CTAs once.
#pragma once

#include "cuda/gemm/consumer.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/producer.cuh"
#include "cuda/gemm/tile_traits.cuh"

namespace nestedfp::cuda {

// What a thread block does, whose number in args.plan is from its place in the grid. lower_map: of experts.
template <class T>
NESTEDFP_DEVICE void run_block(const CUtensorMap& x_map, const CUtensorMap& upper_map, const CUtensorMap& lower_map,
                               const KernelArgs& args) {
    const uint32_t stages = (dynamic_shared() + 1023) & ~1023u;
    constexpr bool kIsMulticast = T::kMulticastCtas == 2;
    const int rank = kIsMulticast || args.plan.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;

    if (threadIdx.x == 0) {
        for (int i = 0; i < T::kXStages; ++i) {
            barrier_init(stages + T::kXFull + i * 8, 1);
            barrier_init(stages + T::kXEmpty + i * 8, 4 * kArrivalsPerWarp * T::kConsumers * T::kMulticastCtas);
        }
        for (int i = 0; i < T::kWeightStages; ++i) {
            barrier_init(stages + T::kWeightsFull + i * 8, T::kProducerWarps - 1);
            barrier_init(stages + T::kWeightsEmpty + i * 8, 4 * kArrivalsPerWarp * T::kConsumers);
        }
        if constexpr (T::kExperts) {
            barrier_init(stages + T::kNextFull, 1);
            barrier_init(stages + T::kNextEmpty, ExpertsSchedule<T>::kArrivals);
        }
        barrier_init_fence();
        prefetch_tensor_map(&x_map);
        prefetch_tensor_map(&upper_map);
        if constexpr (T::kExperts) prefetch_tensor_map(&lower_map);
    }
    if constexpr (kIsMulticast) {
        cluster_sync_relaxed();
    } else {
        __syncthreads();
    }

    if (threadIdx.x < 128) {
        release_registers<T::kProducerRegisters>();
        produce<T>(x_map, upper_map, lower_map, args, stages, rank);
    } else {
        claim_registers<T::kConsumerRegisters>();
        const int consumer = threadIdx.x / 128 - 1;
        const int k_warpgroup = consumer / T::kRowWarpgroups;
        const int row_warpgroup = consumer - k_warpgroup * T::kRowWarpgroups;
        Consumer<T> main_loop(args, stages, row_warpgroup, k_warpgroup, rank);
        Epilogue<T> finish(args, stages, row_warpgroup, k_warpgroup, rank);
        auto schedule = schedule_of<T>(args, stages, rank);
        Work work;
        float sum[T::kAccumulators];
        while (schedule.next(work)) {
            finish.prefetch(work);
            main_loop.run(sum, work.steps, work.width);
            finish.run(sum, work);
        }
        if constexpr (kIsMulticast) cluster_sync_relaxed();  // the other block may still arrive at this one's barriers
    }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    gemm_sm90(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap upper_map,
              const __grid_constant__ KernelArgs args) {
    run_block<T>(x_map, upper_map, upper_map, args);
}

// The products of experts: a token tile has rows of one expert, which lie together in x. In both planes K is in its own
// order, in which vLLM's kernels read them too; FP16 activations have it in the one that consumer.cuh then reads.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    experts_sm90(const __grid_constant__ ExpertsKernelArgs args) {
    run_block<T>(args.x_map, args.upper_map, args.lower_map, args.gemm);
}

}  // namespace nestedfp::cuda
