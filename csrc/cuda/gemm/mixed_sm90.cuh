// The mixed GEMM: exact rows in FP16 and fast rows in FP8 from one pass over the weights, on Hopper.
//
// Both kinds of rows need the upper plane, exact rows the lower one too. A consumer warpgroup issues the FP8 wgmmas of
// a stage, the upper plane being operand A straight from shared memory, and the FP16 wgmmas of the exact rows; under
// both it reads the next stage's planes into registers and joins them (decode.cuh). Fast rows that a mixed tile has no
// room for are multiplied by other thread blocks of the same launch, as gemm_sm90.cuh does it.
#pragma once

#include "cuda/gemm/gemm_sm90.cuh"

namespace nestedfp::cuda {

// A compiled mixed tile: its threads, registers and the map of its shared memory.
template <int Exact, int Fast, int MulticastCtas>
struct MixedTraits {
    static constexpr int kExact = Exact;
    static constexpr int kFast = Fast;
    static constexpr int kTokens = Exact + Fast;
    static_assert(Exact % 16 == 0 && Fast % 16 == 0);

    // As TileTraits has them, for the epilogue.
    static constexpr bool kFp16 = false, kIsScaled = true, kExperts = false;
    static constexpr int kRowWarpgroups = 2, kKWarpgroups = 1, kMulticastCtas = MulticastCtas;
    static constexpr int kConsumers = kRowWarpgroups;
    static constexpr int kThreads = 128 * (kConsumers + 1);
    static constexpr int kRows = 64 * kRowWarpgroups;
    static constexpr int kAccumulators = kTokens / 2;
    static constexpr bool kLastArriverReduces = false;
    static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

    // Two thread blocks of a cluster load half of the activations each for both, so that L2 delivers them once.
    static constexpr int kExactBox = Exact / MulticastCtas, kFastBox = Fast / MulticastCtas;
    static_assert(kExactBox % 8 == 0 && kFastBox % 8 == 0, "groups of 8 swizzled rows");

    // One ring: a stage is 64 columns of K. Exact activations are FP16 in 128-byte rows, fast ones and the upper plane
    // bytes in 64-byte rows, all swizzled; the lower plane is packed.
    static constexpr int kFastOffset = Exact * 128;
    static constexpr int kUpperOffset = kFastOffset + Fast * 64;
    static constexpr int kPlaneBytes = kRows * 64;
    static constexpr int kLowerOffset = kUpperOffset + kPlaneBytes;
    static constexpr int kStageBytes = kLowerOffset + kPlaneBytes;
    static_assert(kStageBytes % 1024 == 0 && kUpperOffset % 512 == 0);

    static constexpr int kChunkTokens = 32;
    static constexpr int kChunkBytes = kChunkTokens * 128;
    static constexpr int kScaleBytes = kRowWarpgroups * kTokens * 4;
    static constexpr int kEpilogueBytes = kRowWarpgroups * 2 * kChunkBytes + kScaleBytes;
    static constexpr int kBarrierBytes = 512;
    static constexpr int kFitting = (232448 - 1024 - kBarrierBytes - kEpilogueBytes) / kStageBytes;
    static constexpr int kStages = kFitting > 8 ? 8 : kFitting;
    static_assert(kStages >= 3, "fewer than three stages cannot hide memory latency");
    static constexpr int kRingBytes = kStages * kStageBytes;
    static constexpr int kSharedBytes = 1024 + kRingBytes + kEpilogueBytes + kBarrierBytes;  // 1024 to align

    static constexpr int kStagingOffset = kRingBytes;
    static constexpr int kSliceSumOffset = kStagingOffset + kRowWarpgroups * 2 * kChunkBytes;
    static constexpr int kScaleOffset = kSliceSumOffset;
    static constexpr int kFull = kStagingOffset + kEpilogueBytes;
    static constexpr int kEmpty = kFull + kStages * 8;
    static constexpr int kLastPartFlag = kEmpty + kStages * 8;
    static constexpr int kProducerWarps = 4;
};

// This block's part of the activations, for the other block as well if there is one.
template <class T>
NESTEDFP_DEVICE void load_part(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
    if constexpr (T::kMulticastCtas == 2) {
        load_box_multicast(to, map, barrier, x, y, policy);
    } else {
        load_box(to, map, barrier, x, y, policy);
    }
}

template <class T>
NESTEDFP_DEVICE void produce_mixed(const MixedKernelArgs& all, uint32_t stages, int rank) {
    const KernelArgs& args = all.mixed;
    const int operand = threadIdx.x / 32;  // 0: fast activations, 1: exact ones, 2: upper, 3: lower
    if (threadIdx.x % 32 != 0) return;
    if (operand <= 1) pdl_wait();  // weights do not depend on the kernel before this one
    if (operand == 0) pdl_launch_dependents();
    Schedule<T::kMulticastCtas> schedule(args.plan, rank);
    RingPosition<T::kStages> ring(1);
    Work work;
    while (schedule.next(work)) {
        const int row = (locate(args.plan, work.tile).row_tile * T::kMulticastCtas + rank) * T::kRows;
        const uint8_t* lower[T::kRowWarpgroups];
#pragma unroll
        for (int i = 0; i < T::kRowWarpgroups; ++i) {
            const int block = min(row / kBlockRows + i, args.lower_row_blocks - 1);
            lower[i] = args.lower + block * args.lower_row_stride + work.first_step * args.lower_col_stride;
        }
#pragma unroll 1
        for (int step = work.first_step; step < work.first_step + work.steps; ++step) {
            const uint32_t stage = stages + ring.stage * T::kStageBytes;
            const uint32_t full = stages + T::kFull + ring.stage * 8;
            barrier_wait(stages + T::kEmpty + ring.stage * 8, ring.phase);
            const int col = step * 64;
            if (operand == 0) {
                barrier_arrive_expect(full, T::kFast * 64);
                load_part<T>(stage + T::kFastOffset + rank * T::kFastBox * 64, &all.fast_map, full, col,
                             rank * T::kFastBox, args.x_policy);
            } else if (operand == 1) {
                barrier_arrive_expect(full, T::kExact * 128);
                load_part<T>(stage + rank * T::kExactBox * 128, &all.exact_map, full, col, rank * T::kExactBox,
                             args.x_policy);
            } else if (operand == 2) {
                barrier_arrive_expect(full, T::kPlaneBytes);
                load_box(stage + T::kUpperOffset, &all.upper_map, full, col, row, args.weight_policy);
            } else {
                barrier_arrive_expect(full, T::kPlaneBytes);
#pragma unroll
                for (int i = 0; i < T::kRowWarpgroups; ++i) {
                    load_bytes(stage + T::kLowerOffset + i * kBlockBytes, lower[i], full, kBlockBytes, kEvictFirst);
                    lower[i] += args.lower_col_stride;
                }
            }
            ring.advance();
        }
    }
}

// The main loop of a consumer warpgroup.
template <class T>
class MixedConsumer {
  public:
    NESTEDFP_DEVICE MixedConsumer(uint32_t stages, int row_warpgroup, int rank) : ring_(stages + T::kFull) {
        if constexpr (T::kMulticastCtas == 2) {
            to_peer_empty_ = peer_address(stages + T::kEmpty, rank ^ 1) - (stages + T::kFull);
        }
        const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        const uint32_t upper = stages + T::kUpperOffset + row_warpgroup * kBlockBytes;
        const uint32_t lower = stages + T::kLowerOffset + row_warpgroup * kBlockBytes;
        exact_ = uniform(ring_.template origin<16>(descriptor_word(stages)));
        fast_ = uniform(ring_.template origin<16>(descriptor_word(stages + T::kFastOffset)));
        upper_ = uniform(ring_.template origin<16>(descriptor_word(upper)));
        // Rows of 64 bytes, whose 16-byte pieces TMA has permuted by bits 1 and 2 of the row.
        upper_bytes_ = ring_.template origin<1>(upper + warp * 1024 + lane / 4 * 64 + (lane % 4 ^ lane / 8) * 16);
        lower_bytes_ = ring_.template origin<1>(lower + warp * 1024 + lane * 16);
    }

    // Adds up `steps` >= 1 stages. Afterwards all of them are released.
    NESTEDFP_DEVICE void run(float (&sum)[T::kAccumulators], int steps) {
        Fragments even, odd;
        stage_ = ring_.wait();
        decode(read_weights(stage_), even);
        for (int left = steps;;) {
            step(sum, even, odd, left, left == steps);
            if (--left == 0) break;
            step(sum, odd, even, left, false);
            if (--left == 0) break;
        }
        wgmma_wait<0>();
        pin(sum);
        release(stage_);
    }

  private:
    using Ring = RingCursor<T::kStages, T::kStageBytes>;

    NESTEDFP_DEVICE Raw read_weights(uint32_t full) const {
        const uint32_t upper = Ring::template offset<1>(full) + upper_bytes_;
        const uint32_t lower = Ring::template offset<1>(full) + lower_bytes_;
        return {load_shared(upper), load_shared(lower), load_shared(upper + 512), load_shared(lower + 512)};
    }

    // Multiplies the stage whose fragments are in `now`, both kinds of rows, and under that decodes the next stage into
    // `then`. `left` stages are to be multiplied, this one included. A warp cannot go on before its FP16 wgmmas have
    // read their fragments, so they come first, and the decode runs under the FP8 ones.
    NESTEDFP_DEVICE void step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, int left,
                              bool is_first) {
        float (&exact)[T::kExact / 2] = reinterpret_cast<float (&)[T::kExact / 2]>(sum[0]);
        float (&fast)[T::kFast / 2] = reinterpret_cast<float (&)[T::kFast / 2]>(sum[T::kExact / 2]);
        const uint32_t stage = stage_;
        Raw raw;
        if (left > 1) {
            stage_ = ring_.wait();
            raw = read_weights(stage_);
        }
        pin(sum);
        wgmma_fence();
        const uint32_t offset = uniform(Ring::template offset<16>(stage));
        multiply_exact(exact, offset, now, !is_first);
        multiply_fast(fast, offset, !is_first);
        wgmma_wait<2>();  // the step before, which read `then`
        if (!is_first) release(before_);
        before_ = stage;
        if (left > 1) decode(raw, then);
    }

    NESTEDFP_DEVICE void multiply_fast(float (&sum)[T::kFast / 2], uint32_t full, int accumulate) {
        const uint32_t a = full + upper_, b = full + fast_;
        WgmmaE4m3<T::kFast>::issue(sum, swizzled64_descriptor(a), swizzled64_descriptor(b), accumulate);
        WgmmaE4m3<T::kFast>::issue(sum, swizzled64_descriptor(a + 2), swizzled64_descriptor(b + 2), 1);
        wgmma_commit();
    }

    NESTEDFP_DEVICE void multiply_exact(float (&sum)[T::kExact / 2], uint32_t full, Fragments& f, int accumulate) {
        const uint32_t x = full + exact_;
        WgmmaHalf<T::kExact>::issue(sum, f[0], swizzled_descriptor(x), accumulate);
        WgmmaHalf<T::kExact>::issue(sum, f[1], swizzled_descriptor(x + 2), 1);
        WgmmaHalf<T::kExact>::issue(sum, f[2], swizzled_descriptor(x + 4), 1);
        WgmmaHalf<T::kExact>::issue(sum, f[3], swizzled_descriptor(x + 6), 1);
        wgmma_commit();
    }

    NESTEDFP_DEVICE void release(uint32_t full) {
        __syncwarp();
        if (threadIdx.x % 32 < kArrivalsPerWarp) barrier_arrive(full + (T::kEmpty - T::kFull));
        if constexpr (T::kMulticastCtas == 2) {
            if (threadIdx.x % 32 >= 32 - kArrivalsPerWarp) barrier_arrive_peer(full + to_peer_empty_);
        }
    }

    Ring ring_;
    uint32_t to_peer_empty_ = 0;          // from a full barrier to the empty barrier of the other block
    uint32_t stage_ = 0, before_ = 0;     // full barriers of the stage to multiply next, and of the one before
    uint32_t exact_, fast_, upper_;       // descriptor words: origins of the ring
    uint32_t upper_bytes_, lower_bytes_;  // addresses of this thread's bytes: origins of the ring
};

template <class T>
NESTEDFP_DEVICE void run_mixed_block(const MixedKernelArgs& all) {
    const uint32_t stages = (dynamic_shared() + 1023) & ~1023u;
    const int rank = T::kMulticastCtas == 2 ? static_cast<int>(cluster_rank()) : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::kStages; ++i) {
            barrier_init(stages + T::kFull + i * 8, T::kProducerWarps);
            barrier_init(stages + T::kEmpty + i * 8, 4 * kArrivalsPerWarp * T::kConsumers * T::kMulticastCtas);
        }
        barrier_init_fence();
    }
    if constexpr (T::kMulticastCtas == 2) {
        cluster_sync_relaxed();
    } else {
        __syncthreads();
    }
    if (threadIdx.x < 128) {
        release_registers<T::kProducerRegisters>();
        produce_mixed<T>(all, stages, rank);
    } else {
        claim_registers<T::kConsumerRegisters>();
        const int row_warpgroup = threadIdx.x / 128 - 1;
        MixedConsumer<T> main_loop(stages, row_warpgroup, rank);
        Epilogue<T> finish(all.mixed, stages, row_warpgroup, 0, rank);
        Schedule<T::kMulticastCtas> schedule(all.mixed.plan, rank);
        Work work;
        float sum[T::kAccumulators];
        while (schedule.next(work)) {
            finish.prefetch(work);
            main_loop.run(sum, work.steps);
            finish.run(sum, work);
        }
        if constexpr (T::kMulticastCtas == 2)
            cluster_sync_relaxed();  // the other block may still arrive at this one's barriers
    }
}

template <class T, class Rest>
__global__ void __launch_bounds__(T::kThreads, 1) mixed_sm90(const __grid_constant__ MixedKernelArgs args) {
    static_assert(T::kThreads == Rest::kThreads);
    if (static_cast<int>(blockIdx.x) < T::kMulticastCtas * args.mixed.plan.blocks) {
        run_mixed_block<T>(args);
    } else {
        run_block<Rest>(args.rest_map, args.rest_upper_map, args.rest_upper_map, args.rest);
    }
}

}  // namespace nestedfp::cuda
