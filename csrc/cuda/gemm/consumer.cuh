// The main loop of a consumer warpgroup: shared memory to accumulators.
#pragma once

#include "cuda/gemm/decode.cuh"
#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/gemm/ring_cursor.cuh"
#include "cuda/gemm/schedule.cuh"
#include "cuda/kernels/layout.h"
#include "tiles/wgmma.inc"  // in the build folder: cuda/generate_tiles.py

namespace nestedfp::cuda {

// A thread's decoded weights of a stage: [k slice of 16][wgmma A register].
using Fragments = uint32_t[4][4];

// What a thread reads of one weight stage: rows r (top) and r + 8 (bottom), 16 bytes of each plane.
struct Raw {
    uint4 upper_top, lower_top, upper_bottom, lower_bottom;
};

template <int J>
NESTEDFP_DEVICE uint32_t word(const uint4& v) {
    return J == 0 ? v.x : J == 1 ? v.y : J == 2 ? v.z : v.w;
}

// InOrder: K is not permuted (decode.cuh).
template <bool InOrder, int J>
NESTEDFP_DEVICE void decode_slice(const Raw& raw, Fragments& f) {
    decode4<InOrder>(word<J>(raw.upper_top), word<J>(raw.lower_top), f[J][0], f[J][2]);
    decode4<InOrder>(word<J>(raw.upper_bottom), word<J>(raw.lower_bottom), f[J][1], f[J][3]);
}

template <bool InOrder = false>
NESTEDFP_DEVICE void decode(const Raw& raw, Fragments& f) {
    decode_slice<InOrder, 0>(raw, f);
    decode_slice<InOrder, 1>(raw, f);
    decode_slice<InOrder, 2>(raw, f);
    decode_slice<InOrder, 3>(raw, f);
}

// One consumer warpgroup's part of the main loop: 64 rows x Tokens, one K slice of every stage.
template <class T>
class Consumer {
  public:
    NESTEDFP_DEVICE Consumer(const KernelArgs& args, uint32_t stages, int row_warpgroup, int k_warpgroup, int rank)
        : x_ring_(stages + T::kXFull),
          weight_ring_(stages + T::kWeightsFull),
          zero_(opaque(threadIdx.x & args.zero)) {  // of a thread, because a uniform value is not opaque
        if constexpr (T::kMulticastCtas == 2) {
            to_peer_x_empty_ = peer_address(stages + T::kXEmpty, rank ^ 1) - (stages + T::kXFull);
        }
        x_ = x_ring_.template origin<16>(descriptor_word(stages + k_warpgroup * T::kXBytes));
        uint32_t weights = stages + T::kWeightsOffset + k_warpgroup * T::kUpperBytes;
        if constexpr (T::kFp16) {
            // In both planes a thread's bytes of rows r and r + 8 are 512 bytes apart and a warp's are contiguous.
            const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
            weights += row_warpgroup * kBlockBytes + warp * 1024 + lane * 16;
            weights_ = weight_ring_.template origin<1>(weights);
        } else {
            weights += row_warpgroup * 8192;
            weights_ = weight_ring_.template origin<16>(descriptor_word(weights));
        }
        if constexpr (T::kPingPong) {
            constexpr int kFirst = 1 + T::kRowWarpgroups;  // named barriers; the ones before are the epilogue's
            my_turn_ = kFirst + row_warpgroup;
            next_turn_ = kFirst + (row_warpgroup + 1) % T::kRowWarpgroups;
            if (row_warpgroup + 1 == T::kRowWarpgroups) named_arrive(next_turn_, 256);
        }
    }

    // Adds up `steps` >= 1 stages, of `width` of T::kWidths parts of the tokens. Afterwards all stages are released.
    template <int Width = T::kWidths>
    NESTEDFP_DEVICE void run(float (&sum)[T::kAccumulators], int steps, int width = Width) {
        if constexpr (Width > 1) {
            if (width < Width) return run<Width - 1>(sum, steps, width);
        }
        constexpr int kTokens = T::kTokens * Width / T::kWidths;
        if constexpr (!T::kFp16) {
            run_fp8(sum, steps);
        } else if constexpr (T::kDecodeInPlace) {
            run_in_place<kTokens>(sum, steps);
        } else if constexpr (T::kOverlapDecode) {
            run_overlapped<kTokens>(sum, steps);
        } else {
            run_simple<kTokens>(sum, steps);
        }
    }

  private:
    NESTEDFP_DEVICE static uint32_t descriptor_base(uint32_t word) {
        return T::kUniformDescriptors ? uniform(word) : word;
    }

    // Waits for the activations of the next stage to multiply and returns the lower word of their descriptor.
    NESTEDFP_DEVICE uint32_t next_activations() {
        x_full_ = x_ring_.wait();
        return descriptor_base(XRing::template offset<16>(x_full_) + x_);
    }

    // One arrival per warp, once all its lanes have read, which takes a __syncwarp before it; other warps may be
    // behind.
    NESTEDFP_DEVICE void arrive_activations(uint32_t full) {
        if (threadIdx.x % 32 < kArrivalsPerWarp) barrier_arrive(full + (T::kXEmpty - T::kXFull));
        if constexpr (T::kMulticastCtas == 2) {
            if (threadIdx.x % 32 >= 32 - kArrivalsPerWarp) barrier_arrive_peer(full + to_peer_x_empty_);
        }
    }

    NESTEDFP_DEVICE void arrive_weights(uint32_t empty) {
        if (threadIdx.x % 32 < kArrivalsPerWarp) barrier_arrive(empty);
    }

    NESTEDFP_DEVICE void release_activations(uint32_t full) {
        __syncwarp();
        arrive_activations(full);
    }

    // FP8: once the wgmmas that read the stage are done.
    NESTEDFP_DEVICE void release_weights(uint32_t full) {
        __syncwarp();
        arrive_weights(full + (T::kWeightsEmpty - T::kWeightsFull));
    }

    // The empty barrier of the stage that was read into `raw`, known only once all its bytes are in registers. An
    // mbarrier arrival is not ordered after this warp's loads from shared memory, and the compiler moves it up to them,
    // so that TMA could overwrite what they have yet to read. An address that depends on every load makes it wait.
    NESTEDFP_DEVICE uint32_t weights_empty_after(const Raw& raw) {
        const uint32_t zero = (raw.upper_top.w ^ raw.lower_top.w ^ raw.upper_bottom.w ^ raw.lower_bottom.w) & zero_;
        return weights_full_ + (T::kWeightsEmpty - T::kWeightsFull) + zero;
    }

    // FP16.
    NESTEDFP_DEVICE void release_weights(const Raw& raw) {
        const uint32_t empty = weights_empty_after(raw);
        __syncwarp();
        arrive_weights(empty);
    }

    NESTEDFP_DEVICE void read_weights(Raw& raw) {
        weights_full_ = weight_ring_.wait();
        const uint32_t upper = WeightRing::template offset<1>(weights_full_) + weights_;
        const uint32_t lower = upper + T::kLowerOffset;
        raw.upper_top = load_shared(upper);
        raw.lower_top = load_shared(lower);
        raw.upper_bottom = load_shared(upper + 512);
        raw.lower_bottom = load_shared(lower + 512);
    }

    // Multiplies the stage whose fragments are in `now` while it decodes the next stage, whose bytes are in `raw`, into
    // `then`, and at last reads the one after that into `raw`. wgmmas are committed two by two. Two fragments may be
    // overwritten once the pair of the previous step that read them is done, two pairs back: so up to three are in
    // flight. `left` stages are to be multiplied, this one included.
    template <int Tokens>
    NESTEDFP_DEVICE void interleaved_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw,
                                          int left) {
        const bool is_first = accumulate_ == 0;
        const uint32_t before = x_full_;
        const uint32_t x = next_activations();
        pin(sum);
        multiply_pair<Tokens, 0>(sum, now, x);
        decode_slice<T::kExperts, 0>(raw, then);  // in the last step these are stale bytes that nobody uses
        decode_slice<T::kExperts, 1>(raw, then);
        multiply_pair<Tokens, 2>(sum, now, x);
        decode_slice<T::kExperts, 2>(raw, then);
        decode_slice<T::kExperts, 3>(raw, then);
        // Both arrivals here, behind one __syncwarp and the branch of the next read: raw's could come when it is read,
        // one step earlier, for four more instructions.
        const uint32_t weights_empty = weights_empty_after(raw);
        __syncwarp();
        if (!is_first) arrive_activations(before);  // of the previous step: its last pair is two back
        if (left > 2) {
            arrive_weights(weights_empty);
            read_weights(raw);
        }
    }

    template <int Tokens, int J>
    NESTEDFP_DEVICE void multiply_pair(float (&sum)[T::kAccumulators], Fragments& now, uint32_t x) {
        wgmma_fence();
        multiply<Tokens, J>(sum, now, x);
        multiply<Tokens, J + 1>(sum, now, x);
        wgmma_commit();
        wgmma_wait<2>();
    }

    template <int Tokens, int J>
    NESTEDFP_DEVICE void multiply(float (&sum)[T::kAccumulators], Fragments& f, uint32_t x) {
        constexpr int kInstructions = Tokens > 256 ? 2 : 1, kTokens = Tokens / kInstructions;
#pragma unroll
        for (int i = 0; i < kInstructions; ++i) {
            WgmmaHalf<kTokens>::issue(sum + i * kTokens / 2, f[J], swizzled_descriptor(x + 2 * J + i * kTokens * 8),
                                      accumulate_);
        }
        accumulate_ = 1;
    }

    template <int Tokens>
    NESTEDFP_DEVICE void multiply_all(float (&sum)[T::kAccumulators], Fragments& f, uint32_t x) {
        wgmma_fence();
        multiply<Tokens, 0>(sum, f, x);
        multiply<Tokens, 1>(sum, f, x);
        multiply<Tokens, 2>(sum, f, x);
        multiply<Tokens, 3>(sum, f, x);
        wgmma_commit();
    }

    // The same, with the next stage read and decoded in one go under this stage's wgmmas.
    template <int Tokens>
    NESTEDFP_DEVICE void batched_step(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw,
                                      int left) {
        const bool is_first = accumulate_ == 0;
        const uint32_t before = x_full_;
        const uint32_t x = next_activations();
        pin(sum);
        multiply_all<Tokens>(sum, now, x);
        wgmma_wait<1>();
        if (!is_first) release_activations(before);
        if (left > 1) {
            read_weights(raw);
            release_weights(raw);
        }
        decode<T::kExperts>(raw, then);
    }

    template <int Tokens>
    NESTEDFP_DEVICE void step_once(float (&sum)[T::kAccumulators], Fragments& now, Fragments& then, Raw& raw,
                                   int left) {
        if constexpr (T::kInterleaveDecode) {
            interleaved_step<Tokens>(sum, now, then, raw, left);
        } else {
            batched_step<Tokens>(sum, now, then, raw, left);
        }
    }

    template <int Tokens>
    NESTEDFP_DEVICE void run_overlapped(float (&sum)[T::kAccumulators], int steps) {
        Fragments even, odd;
        Raw raw;
        accumulate_ = 0;
        read_weights(raw);
        release_weights(raw);
        decode<T::kExperts>(raw, even);
        if (T::kInterleaveDecode && steps > 1) read_weights(raw);
        for (int left = steps;;) {
            step_once<Tokens>(sum, even, odd, raw, left);
            if (--left == 0) break;
            step_once<Tokens>(sum, odd, even, raw, left);
            if (--left == 0) break;
        }
        wgmma_wait<0>();
        pin(sum);
        if (T::kInterleaveDecode && steps > 1) release_weights(raw);  // which no further read has released
        release_activations(x_full_);
    }

    // Wide tiles add to zeros: there the predicate that the first wgmmas need, to add to nothing, costs ten
    // instructions a stage and spilled registers.
    NESTEDFP_DEVICE void clear(float (&sum)[T::kAccumulators]) {
#pragma unroll
        for (float& value : sum) value = 0;
        accumulate_ = 1;
    }

    template <int Tokens, int J>
    NESTEDFP_DEVICE void issue_pair(float (&sum)[T::kAccumulators], Fragments& f, uint32_t x) {
        pin(sum);
        wgmma_fence();
        multiply<Tokens, J>(sum, f, x);
        multiply<Tokens, J + 1>(sum, f, x);
        wgmma_commit();
    }

    // One set of fragments: the wgmmas of one half of them run while the other half is decoded for the stage to come.
    template <int Tokens>
    NESTEDFP_DEVICE void run_in_place(float (&sum)[T::kAccumulators], int steps) {
        Fragments f;
        Raw raw;
        clear(sum);
        read_weights(raw);
        decode_slice<T::kExperts, 0>(raw, f);
        decode_slice<T::kExperts, 1>(raw, f);
#pragma unroll 1
        for (int left = steps;;) {
            const uint32_t before = x_full_;
            const uint32_t x = next_activations();
            issue_pair<Tokens, 0>(sum, f, x);
            wgmma_wait<1>();
            decode_slice<T::kExperts, 2>(raw, f);
            decode_slice<T::kExperts, 3>(raw, f);
            const uint32_t weights_empty = weights_empty_after(raw);
            __syncwarp();
            if (left < steps) arrive_activations(before);
            arrive_weights(weights_empty);
            --left;
            if (left > 0) read_weights(raw);
            issue_pair<Tokens, 2>(sum, f, x);
            if (left == 0) break;
            wgmma_wait<1>();
            decode_slice<T::kExperts, 0>(raw, f);
            decode_slice<T::kExperts, 1>(raw, f);
        }
        wgmma_wait<0>();
        pin(sum);
        release_activations(x_full_);
    }

    template <int Tokens>
    NESTEDFP_DEVICE void run_simple(float (&sum)[T::kAccumulators], int steps) {
        Fragments f;
        Raw raw;
        accumulate_ = 0;
        read_weights(raw);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            release_weights(raw);
            decode<T::kExperts>(raw, f);
            const uint32_t x = next_activations();
            if constexpr (T::kPingPong) named_sync(my_turn_, 256);
            pin(sum);
            multiply_all<Tokens>(sum, f, x);
            if constexpr (T::kPingPong) named_arrive(next_turn_, 256);
            if (step + 1 < steps) read_weights(raw);  // under the wgmmas
            wgmma_wait<0>();
            pin(sum);
            release_activations(x_full_);
        }
    }

    NESTEDFP_DEVICE void run_fp8(float (&sum)[T::kAccumulators], int steps) {
        accumulate_ = 0;
        if constexpr (T::kInstructions == 2) clear(sum);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const uint32_t weights_before = weights_full_, x_before = x_full_;
            weights_full_ = weight_ring_.wait();
            const uint32_t w = descriptor_base(WeightRing::template offset<16>(weights_full_) + weights_);
            const uint32_t x = next_activations();
            pin(sum);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < T::kInstructions; ++i) {
                    constexpr int kTokens = T::kInstructionTokens;
                    WgmmaE4m3<kTokens>::issue(sum + i * kTokens / 2, swizzled_descriptor(w + 2 * j),
                                              swizzled_descriptor(x + 2 * j + i * kTokens * 8), accumulate_);
                }
                accumulate_ = 1;
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0) {
                release_weights(weights_before);
                release_activations(x_before);
            }
        }
        wgmma_wait<0>();
        pin(sum);
        release_weights(weights_full_);
        release_activations(x_full_);
    }

    using XRing = RingCursor<T::kXStages, T::kXStageBytes>;
    using WeightRing = RingCursor<T::kWeightStages, T::kWeightStageBytes>;

    XRing x_ring_;
    WeightRing weight_ring_;
    uint32_t zero_;
    uint32_t x_;        // descriptor word of this warpgroup's part of a stage: origin of the ring
    uint32_t weights_;  // likewise of its weights; FP16: the address of this thread's bytes of them
    uint32_t x_full_ = 0, weights_full_ = 0;  // full barriers of the stages that were waited for last
    uint32_t to_peer_x_empty_ = 0;  // from a full barrier to the empty barrier of the other CTA, which multicasts half
                                    // of this one's activations
    int accumulate_ = 0;
    int my_turn_ = 0, next_turn_ = 0;
};

}  // namespace nestedfp::cuda
