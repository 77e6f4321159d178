// The main loop of a consumer warpgroup: shared memory to accumulators.
#pragma once

#include "cuda/gemm/decode.cuh"
#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/gemm/schedule.cuh"
#include "cuda/kernels/layout.h"
#include "tiles/wgmma.inc"  // in the build folder: cuda/generate_tiles.py

namespace nestedfp::cuda {

// One consumer warpgroup's part of the main loop: 64 rows x Tokens, one K slice of every stage.
template <class T>
class Consumer {
  public:
    NESTEDFP_DEVICE Consumer(const KernelArgs& args, uint32_t stages, int row_warpgroup, int k_warpgroup, int rank)
        : stages_(stages), zero_(args.zero) {
        if constexpr (T::kMulticastCtas == 2) peer_x_empty_ = peer_address(stages + T::kXEmpty, rank ^ 1);
        x_ = stages + k_warpgroup * T::kXBytes;
        weights_ = stages + T::kWeightsOffset + k_warpgroup * T::kUpperBytes;
        if constexpr (T::kFp16) {
            // In both planes a thread's bytes of rows r and r + 8 are 512 bytes apart and a warp's are contiguous.
            const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
            weights_ += row_warpgroup * kBlockBytes + warp * 1024 + lane * 16;
        } else {
            weights_ += row_warpgroup * 8192;
        }
        if constexpr (T::kPingPong) {
            constexpr int kFirst = 1 + T::kRowWarpgroups;  // named barriers; the ones before are the epilogue's
            my_turn_ = kFirst + row_warpgroup;
            next_turn_ = kFirst + (row_warpgroup + 1) % T::kRowWarpgroups;
            if (row_warpgroup + 1 == T::kRowWarpgroups) named_arrive(next_turn_, 256);
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
        if (threadIdx.x % 32 < kArrivalsPerWarp) barrier_arrive(stages_ + T::kXEmpty + x_release_ * 8);
        if constexpr (T::kMulticastCtas == 2) {
            if (threadIdx.x % 32 >= 32 - kArrivalsPerWarp) barrier_arrive_peer(peer_x_empty_ + x_release_ * 8);
        }
        if (++x_release_ == T::kXStages) x_release_ = 0;
    }

    // FP8: once the wgmmas that read the stage are done.
    NESTEDFP_DEVICE void release_weights(uint32_t zero = 0) {
        __syncwarp();
        if (threadIdx.x % 32 < kArrivalsPerWarp)
            barrier_arrive(stages_ + T::kWeightsEmpty + weight_release_ * 8 + zero);
        if (++weight_release_ == T::kWeightStages) weight_release_ = 0;
    }

    // FP16: once what was read into `raw` has arrived in registers. An mbarrier arrival is not ordered after this
    // warp's loads from shared memory, and the compiler moves it up to them, so that TMA could overwrite what they have
    // yet to read. An address that depends on every load makes it wait.
    NESTEDFP_DEVICE void release_weights(const Raw& raw) {
        release_weights((raw.upper_top.x ^ raw.lower_top.x ^ raw.upper_bottom.x ^ raw.lower_bottom.x) & zero_);
    }

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
    NESTEDFP_DEVICE void interleaved_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw,
                                          int step, int steps) {
        const uint64_t x = next_activations();
        pin(sum);
        multiply_and_decode<0>(sum, now, then, raw, x, accumulate_);
        accumulate_ = 1;
        if (step + 1 < steps) release_weights(raw);
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
    NESTEDFP_DEVICE void batched_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw,
                                      int step, int steps) {
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
        if (step + 1 < steps) release_weights(raw);
        decode_all(raw, then);
    }

    NESTEDFP_DEVICE void step_once(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw, int step,
                                   int steps) {
        if constexpr (T::kInterleaveDecode) {
            interleaved_step(sum, now, then, raw, step, steps);
        } else {
            batched_step(sum, now, then, raw, step, steps);
        }
    }

    NESTEDFP_DEVICE void run_overlapped(float (&sum)[T::kAccumulators], int steps) {
        Fragments even, odd;
        Raw raw;
        accumulate_ = 0;
        read_weights(raw);
        release_weights(raw);
        decode_all(raw, even);
        if (T::kInterleaveDecode && steps > 1) read_weights(raw);
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
        if constexpr (T::kReadAhead) read_weights(raw);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if constexpr (!T::kReadAhead) read_weights(raw);
            release_weights(raw);
            decode_all(raw, f);
            const uint64_t x = next_activations();
            if constexpr (T::kPingPong) named_sync(my_turn_, 256);
            pin(sum);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                WgmmaHalf<T::kTokens>::issue(sum, f[j], x + 2 * j, accumulate_);
                accumulate_ = 1;
            }
            wgmma_commit();
            if constexpr (T::kPingPong) named_arrive(next_turn_, 256);
            if (T::kReadAhead && step + 1 < steps) read_weights(raw);
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

    uint32_t stages_, x_, weights_, zero_;
    uint32_t peer_x_empty_ = 0;  // of the other CTA, which multicasts half of this one's activations
    RingPosition<T::kXStages> x_ring_{0};
    RingPosition<T::kWeightStages> weight_ring_{0};
    int x_release_ = 0, weight_release_ = 0, accumulate_ = 0;
    int my_turn_ = 0, next_turn_ = 0;
};

}  // namespace nestedfp::cuda
