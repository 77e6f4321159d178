// D[M,N] = X[M,K] @ W[N,K].T on Hopper, one kernel template for both precisions.
//
// A thread block is one producer warpgroup, whose warps each feed one operand through TMA, and row_warpgroups x
// k_warpgroups consumer warpgroups. Tokens are wgmma's N operand, so every M from 1 up costs what it must. Weights are
// its M operand:
//   FP16: both planes go from shared memory to registers, are decoded there (decode.cuh) and enter wgmma as register
//   operand A.
//         The decode of stage k + 1 is woven between the wgmmas of stage k, and the shared-memory reads run one more
//         stage ahead.
//   FP8:  the upper plane is operand A straight from shared memory.
// A tile's K may be split over the thread blocks of a cluster; partial sums meet through distributed shared memory in a
// fixed order (epilogue.cuh). Results do not depend on timing.
#pragma once

#include <cuda_fp16.h>

#include "decode.cuh"
#include "kernel_args.h"
#include "layout.h"
#include "ptx.cuh"
#include "wgmma.inc"

namespace nestedfp::cuda {

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm>
struct TileTraits {
    static constexpr Precision kPrecision = P;
    static constexpr bool kFp16 = P == Precision::kFp16;
    static constexpr int kRowWarpgroups = RowWarpgroups;
    static constexpr int kKWarpgroups = KWarpgroups;
    static constexpr int kTokens = Tokens;
    static constexpr int kBlocksPerSm = BlocksPerSm;

    static constexpr int kConsumers = RowWarpgroups * KWarpgroups;
    static constexpr int kThreads = 128 * (kConsumers + 1);
    static constexpr int kRows = 64 * RowWarpgroups;
    static constexpr int kSliceCols = kFp16 ? 64 : 128;  // K columns per consumer and stage
    static constexpr int kAccumulators = Tokens / 2;     // per thread
    // Two warpgroups alone hide the decode of the next stage under their own wgmmas. Where two blocks share a
    // multiprocessor or three warpgroups a block, the others' wgmmas hide it, and registers are short.
    static constexpr bool kOverlapDecode = kFp16 && BlocksPerSm == 1 && kConsumers == 2;
    // Up to 192 tokens the decode is woven between the wgmmas. At 256 a stage's wgmmas are long enough to hide it as
    // one block, and the fewer live registers matter more.
    static constexpr bool kWeave = Tokens <= 192;

    // Two rings of stages, because weights leave shared memory two steps before their activations do (they go through
    // registers): one ring would hold their dead bytes for as long. A stage has one part per K slice; a weight stage
    // has the upper parts, then the lower parts.
    static constexpr int kXBytes = Tokens * 128;
    static constexpr int kUpperBytes = kRows * (kFp16 ? 64 : 128);
    static constexpr int kLowerBytes = kFp16 ? kRows * 64 : 0;
    static constexpr int kXStageBytes = KWarpgroups * kXBytes;
    static constexpr int kLowerOffset = KWarpgroups * kUpperBytes;  // in a weight stage
    static constexpr int kWeightStageBytes = kLowerOffset + KWarpgroups * kLowerBytes;

    // Epilogue: per row warpgroup two buffers of some tokens x 64 rows in FP16, the sums of the other K slices, token
    // scales.
    static constexpr int kChunkTokens = Tokens < 32 ? Tokens : 32;
    static constexpr int kChunkBytes = kChunkTokens * 128;
    static constexpr int kSliceSumBytes = (KWarpgroups - 1) * RowWarpgroups * Tokens * 256;
    static constexpr int kScaleBytes = kFp16 ? 0 : RowWarpgroups * Tokens * 4;
    static constexpr int kEpilogueBytes = RowWarpgroups * 2 * kChunkBytes + kSliceSumBytes + kScaleBytes;

    static constexpr int kSharedLimit = BlocksPerSm == 1 ? 232448 : 115712;  // bytes that a block may have
    static constexpr int kBarrierBytes = 512;
    static constexpr int kRingLimit = kSharedLimit - 1024 - kBarrierBytes - kEpilogueBytes;
    static constexpr int kMaxStages = 12;
    static constexpr int kExtraXStages = kOverlapDecode && kWeave ? 2 : 0;
    static constexpr int kFitting = (kRingLimit - kExtraXStages * kXStageBytes) / (kXStageBytes + kWeightStageBytes);
    static constexpr int kWeightStages = kFitting > kMaxStages ? kMaxStages : kFitting;
    static constexpr int kXFitting = (kRingLimit - kWeightStages * kWeightStageBytes) / kXStageBytes;
    static constexpr int kXStages = kXFitting > kMaxStages ? kMaxStages : kXFitting;
    static constexpr int kRingBytes = kXStages * kXStageBytes + kWeightStages * kWeightStageBytes;
    static constexpr int kSharedBytes = 1024 + kRingBytes + kEpilogueBytes + kBarrierBytes;  // 1024 to align
    static_assert(kWeightStages >= 3 && kXStages >= 3, "fewer than three stages cannot hide memory latency");

    // Offsets from the first stage of activations.
    static constexpr int kWeightsOffset = kXStages * kXStageBytes;
    static constexpr int kStagingOffset = kRingBytes;
    static constexpr int kSliceSumOffset = kStagingOffset + RowWarpgroups * 2 * kChunkBytes;
    static constexpr int kScaleOffset = kSliceSumOffset + kSliceSumBytes;
    static constexpr int kXFull = kStagingOffset + kEpilogueBytes;  // barriers: activations are there, ...
    static constexpr int kXEmpty = kXFull + kXStages * 8;           // ... may be overwritten,
    static constexpr int kWeightsFull = kXEmpty + kXStages * 8;     // likewise weights
    static constexpr int kWeightsEmpty = kWeightsFull + kWeightStages * 8;
    static_assert(2 * 8 * (kXStages + kWeightStages) <= kBarrierBytes);

    static constexpr int kProducerRegisters = BlocksPerSm == 2 ? 24 : kConsumers == 2 ? 40 : 24;
    static constexpr int kConsumerRegisters = BlocksPerSm == 2  ? 104
                                              : kConsumers == 2 ? 232
                                              : kConsumers == 3 ? 160
                                                                : 112;
    static constexpr int kProducerWarps = kFp16 ? 3 : 2;
};

// The part of one tile that a thread block computes.
struct Work {
    int row_tile, token_tile;
    int first_step, steps;
    bool is_split;
};

// Walks a thread block's share of the tiles; producer and consumers walk in lockstep. Whole tiles first, then at most
// one split tile, last: its partial sums reuse the pipeline's memory.
class Schedule {
  public:
    NESTEDFP_DEVICE Schedule(const GemmPlan& plan, int split, int rank)
        : plan_(plan), split_(split), rank_(rank), next_(blockIdx.x) {}

    NESTEDFP_DEVICE bool next(Work& work) {
        int tile = next_;
        if (tile < plan_.whole_tiles) {
            next_ += plan_.blocks;
            work.first_step = 0;
            work.steps = plan_.steps;
            work.is_split = false;
        } else {
            if (split_ == 1 || is_done_) return false;
            is_done_ = true;
            tile = plan_.whole_tiles + static_cast<int>(blockIdx.x) / split_;
            if (tile >= plan_.tiles) return false;
            work.first_step = rank_ * plan_.steps / split_;
            work.steps = (rank_ + 1) * plan_.steps / split_ - work.first_step;
            work.is_split = true;
        }
        work.row_tile = tile / plan_.token_tiles;
        work.token_tile = tile - work.row_tile * plan_.token_tiles;
        return true;
    }

  private:
    const GemmPlan& plan_;
    int split_, rank_, next_;
    bool is_done_ = false;
};

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

template <class T>
NESTEDFP_DEVICE void produce_activations(const CUtensorMap& x_map, const KernelArgs& args, uint32_t stages, int split,
                                         int rank) {
    Schedule schedule(args.plan, split, rank);
    RingPosition<T::kXStages> ring(1);
    Work work;
    while (schedule.next(work)) {
        const int token = work.token_tile * T::kTokens;
        int slice = work.first_step * T::kKWarpgroups;
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) {
            const uint32_t stage = stages + ring.stage * T::kXStageBytes;
            const uint32_t barrier = stages + T::kXFull + ring.stage * 8;
            barrier_wait(stages + T::kXEmpty + ring.stage * 8, ring.phase);
            barrier_arrive_expect(barrier, T::kXStageBytes);
#pragma unroll
            for (int i = 0; i < T::kKWarpgroups; ++i) {
                load_box(stage + i * T::kXBytes, &x_map, barrier, (slice + i) * T::kSliceCols, token, args.x_policy);
            }
            slice += T::kKWarpgroups;
            ring.advance();
        }
    }
}

template <class T>
NESTEDFP_DEVICE void produce_weights(int operand, const CUtensorMap& upper_map, const KernelArgs& args, uint32_t stages,
                                     int split, int rank) {
    Schedule schedule(args.plan, split, rank);
    RingPosition<T::kWeightStages> ring(1);
    Work work;
    while (schedule.next(work)) {
        const int row = work.row_tile * T::kRows;
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
            if (operand == 1) {
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
NESTEDFP_DEVICE void produce(const CUtensorMap& x_map, const CUtensorMap& upper_map, const KernelArgs& args,
                             uint32_t stages, int split, int rank) {
    const int operand = threadIdx.x / 32;  // 0: activations, 1: upper, 2: lower
    if (threadIdx.x % 32 != 0 || operand >= T::kProducerWarps) return;
    if (operand == 0) {
        // Weights do not depend on the kernel before this one, so only the activations wait for it.
        wait_for_predecessor();
        allow_successor();
    }
    if (operand == 0) {
        produce_activations<T>(x_map, args, stages, split, rank);
    } else {
        produce_weights<T>(operand, upper_map, args, stages, split, rank);
    }
}

// One consumer warpgroup's share of the main loop: 64 rows x Tokens, one K slice of every stage.
template <class T>
class Consumer {
  public:
    NESTEDFP_DEVICE Consumer(uint32_t stages, int row_warpgroup, int k_warpgroup) : stages_(stages) {
        x_ = stages + k_warpgroup * T::kXBytes;
        weights_ = stages + T::kWeightsOffset + k_warpgroup * T::kUpperBytes;
        if constexpr (T::kFp16) {
            // In both planes a thread's bytes of rows r and r + 8 are 512 bytes apart and a warp's are contiguous.
            const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
            weights_ += row_warpgroup * kBlockBytes + warp * 1024 + lane * 16;
        } else {
            weights_ += row_warpgroup * 8192;
        }
    }

    // Adds up `steps` >= 1 stages. Afterwards all of them are released.
    NESTEDFP_DEVICE void run(float (&sum)[T::kAccumulators], int steps) {
        if constexpr (!T::kFp16) {
            run_fp8(sum, steps);
        } else if constexpr (T::kOverlapDecode) {
            run_overlapped(sum, steps);
        } else {
            run_simple(sum, steps);
        }
    }

  private:
    using Fragments = uint32_t[4][4];  // [k slice of 16][wgmma A register]

    // What a thread reads of one weight stage: rows r (top) and r + 8 (bottom), 16 bytes of each plane.
    struct Raw {
        uint4 upper_top, lower_top, upper_bottom, lower_bottom;
    };

    NESTEDFP_DEVICE void wait_weights() {
        barrier_wait(stages_ + T::kWeightsFull + weight_ring_.stage * 8, weight_ring_.phase);
    }

    // Waits for the activations of the next stage to multiply and returns their descriptor.
    NESTEDFP_DEVICE uint64_t next_activations() {
        barrier_wait(stages_ + T::kXFull + x_ring_.stage * 8, x_ring_.phase);
        const uint64_t descriptor = swizzled_descriptor(x_ + x_ring_.stage * T::kXStageBytes);
        x_ring_.advance();
        return descriptor;
    }

    // One arrival per warp, once all its lanes have read; other warps may be behind.
    NESTEDFP_DEVICE void release_activations() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(stages_ + T::kXEmpty + x_release_ * 8);
        if (++x_release_ == T::kXStages) x_release_ = 0;
    }

    NESTEDFP_DEVICE void release_weights() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(stages_ + T::kWeightsEmpty + weight_release_ * 8);
        if (++weight_release_ == T::kWeightStages) weight_release_ = 0;
    }

    // Into registers. Release the stage after the first use, when the loads are known to have completed.
    NESTEDFP_DEVICE void read_weights(Raw& raw) {
        wait_weights();
        const uint32_t upper = weights_ + weight_ring_.stage * T::kWeightStageBytes;
        const uint32_t lower = upper + T::kLowerOffset;
        weight_ring_.advance();
        raw.upper_top = load_shared(upper);
        raw.lower_top = load_shared(lower);
        raw.upper_bottom = load_shared(upper + 512);
        raw.lower_bottom = load_shared(lower + 512);
    }

    template <int J>
    NESTEDFP_DEVICE static uint32_t word(const uint4& v) {
        return J == 0 ? v.x : J == 1 ? v.y : J == 2 ? v.z : v.w;
    }

    template <int J>
    NESTEDFP_DEVICE static void decode(const Raw& raw, Fragments& f) {
        decode4(word<J>(raw.upper_top), word<J>(raw.lower_top), f[J][0], f[J][2]);
        decode4(word<J>(raw.upper_bottom), word<J>(raw.lower_bottom), f[J][1], f[J][3]);
    }

    NESTEDFP_DEVICE static void decode_all(const Raw& raw, Fragments& f) {
        decode<0>(raw, f);
        decode<1>(raw, f);
        decode<2>(raw, f);
        decode<3>(raw, f);
    }

    // Multiplies the stage whose fragments are in `now` while it decodes the next stage, whose bytes are in `raw`, into
    // `then`, and at last reads the one after that into `raw`. A fragment may be overwritten once the wgmma of the
    // previous step that read it is done, four wgmmas back: so up to five are in flight.
    NESTEDFP_DEVICE void woven_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw, int step,
                                    int steps) {
        const uint64_t x = next_activations();
        pin(sum);
        multiply_and_decode<0>(sum, now, then, raw, x, accumulate_);
        accumulate_ = 1;
        if (step + 1 < steps) release_weights();
        multiply_and_decode<1>(sum, now, then, raw, x, 1);
        multiply_and_decode<2>(sum, now, then, raw, x, 1);
        multiply_and_decode<3>(sum, now, then, raw, x, 1);
        if (step > 0) release_activations();  // of the previous step: its last wgmma is four back
        if (step + 2 < steps) read_weights(raw);
    }

    template <int J>
    NESTEDFP_DEVICE void multiply_and_decode(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then,
                                             const Raw& raw, uint64_t x, int accumulate) {
        wgmma_fence();
        WgmmaHalf<T::kTokens>::issue(sum, now[J], x + 2 * J, accumulate);
        wgmma_commit();
        wgmma_wait<4>();
        decode<J>(raw, then);  // in the last step these are stale bytes that nobody uses
    }

    // The same, with the next stage read and decoded in one go under this stage's wgmmas.
    NESTEDFP_DEVICE void block_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw, int step,
                                    int steps) {
        const uint64_t x = next_activations();
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            WgmmaHalf<T::kTokens>::issue(sum, now[j], x + 2 * j, accumulate_);
            accumulate_ = 1;
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0) release_activations();
        if (step + 1 < steps) read_weights(raw);
        decode_all(raw, then);
        if (step + 1 < steps) release_weights();
    }

    NESTEDFP_DEVICE void step_once(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw, int step,
                                   int steps) {
        if constexpr (T::kWeave) {
            woven_step(sum, now, then, raw, step, steps);
        } else {
            block_step(sum, now, then, raw, step, steps);
        }
    }

    NESTEDFP_DEVICE void run_overlapped(float (&sum)[T::kAccumulators], int steps) {
        Fragments even, odd;
        Raw raw;
        accumulate_ = 0;
        read_weights(raw);
        decode_all(raw, even);
        release_weights();
        if (T::kWeave && steps > 1) read_weights(raw);
        for (int step = 0;;) {
            step_once(sum, even, odd, raw, step, steps);
            if (++step == steps) break;
            step_once(sum, odd, even, raw, step, steps);
            if (++step == steps) break;
        }
        wgmma_wait<0>();
        pin(sum);
        release_activations();
    }

    NESTEDFP_DEVICE void run_simple(float (&sum)[T::kAccumulators], int steps) {
        Fragments f;
        Raw raw;
        accumulate_ = 0;
        read_weights(raw);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            decode_all(raw, f);
            release_weights();
            const uint64_t x = next_activations();
            pin(sum);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                WgmmaHalf<T::kTokens>::issue(sum, f[j], x + 2 * j, accumulate_);
                accumulate_ = 1;
            }
            wgmma_commit();
            if (step + 1 < steps) read_weights(raw);
            wgmma_wait<0>();
            pin(sum);
            release_activations();
        }
    }

    NESTEDFP_DEVICE void run_fp8(float (&sum)[T::kAccumulators], int steps) {
        accumulate_ = 0;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait_weights();
            const uint64_t w = swizzled_descriptor(weights_ + weight_ring_.stage * T::kWeightStageBytes);
            weight_ring_.advance();
            const uint64_t x = next_activations();
            pin(sum);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                WgmmaE4m3<T::kTokens>::issue(sum, w + 2 * j, x + 2 * j, accumulate_);
                accumulate_ = 1;
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0) {
                release_weights();
                release_activations();
            }
        }
        wgmma_wait<0>();
        pin(sum);
        release_weights();
        release_activations();
    }

    uint32_t stages_, x_, weights_;
    RingPosition<T::kXStages> x_ring_{0};
    RingPosition<T::kWeightStages> weight_ring_{0};
    int x_release_ = 0, weight_release_ = 0, accumulate_ = 0;
};

}  // namespace nestedfp::cuda

#include "epilogue.cuh"

namespace nestedfp::cuda {

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    gemm_sm90(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap upper_map,
              const __grid_constant__ KernelArgs args, int split) {
    extern __shared__ uint8_t shared[];
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;

    if (threadIdx.x == 0) {
        for (int i = 0; i < T::kXStages; ++i) {
            barrier_init(stages + T::kXFull + i * 8, 1);
            barrier_init(stages + T::kXEmpty + i * 8, 4 * T::kConsumers);
        }
        for (int i = 0; i < T::kWeightStages; ++i) {
            barrier_init(stages + T::kWeightsFull + i * 8, T::kProducerWarps - 1);
            barrier_init(stages + T::kWeightsEmpty + i * 8, 4 * T::kConsumers);
        }
        barrier_init_fence();
        prefetch_tensor_map(&x_map);
        prefetch_tensor_map(&upper_map);
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        release_registers<T::kProducerRegisters>();
        produce<T>(x_map, upper_map, args, stages, split, rank);
    } else {
        claim_registers<T::kConsumerRegisters>();
        const int consumer = threadIdx.x / 128 - 1;
        const int k_warpgroup = consumer / T::kRowWarpgroups;
        const int row_warpgroup = consumer - k_warpgroup * T::kRowWarpgroups;
        Consumer<T> main_loop(stages, row_warpgroup, k_warpgroup);
        Epilogue<T> finish(args, stages, row_warpgroup, k_warpgroup, split, rank);
        Schedule schedule(args.plan, split, rank);
        Work work;
        float sum[T::kAccumulators];
        while (schedule.next(work)) {
            finish.prefetch(work);
            main_loop.run(sum, work.steps);
            finish.run(sum, work);
        }
    }
}

}  // namespace nestedfp::cuda
