// The portable GEMM: D[M,N] = X[M,K] @ W[N,K]^T on any GPU from compute capability 8.0 on, with the packed planes and
// the decoder of the Hopper kernel.
//
// As there the weights are the M operand of the tensor cores and the tokens their N operand, so that one token costs 8
// columns and not 64. Here both go through registers (mma.sync): of a block of 64 columns a lane reads the 16 bytes at
// 16 * t of its rows, which layout.h has put there for it, from each plane; decoded they are its fragments of four
// products of k = 16. E4M3 needs no decoding: the same 16 bytes are the fragments of two products of k = 32, whose own
// order of k is whatever weights and codes agree on. cp.async keeps a ring of stages filled, Multistage as in CUTLASS's
// sm80 kernels.
#pragma once

#include "cuda/gemm/decode.cuh"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/loader.cuh"

namespace nestedfp::cuda {

template <class Traits>
class PortableConsumer {
  public:
    NESTEDFP_DEVICE PortableConsumer()
        : lane_(thread_index() % 32),
          first_row_(thread_index() / 32 / Traits::kTokenWarps * Traits::kRowFrags * 16),
          first_token_(thread_index() / 32 % Traits::kTokenWarps * Traits::kTokenFrags * 8) {}

    NESTEDFP_DEVICE void multiply(const uint8_t* stage, PortableSums<Traits>& sums) const {
#pragma unroll
        for (int block = 0; block < Traits::kStepBlocks; ++block) {
            if constexpr (Traits::kIsFp8) {
                multiply_codes(stage, block, sums);
            } else {
                multiply_halves(stage, sums);
            }
        }
    }

    NESTEDFP_DEVICE int first_row() const { return first_row_; }
    NESTEDFP_DEVICE int first_token() const { return first_token_; }

  private:
    // The lower plane's bytes where residuals are zero: bias_of() of layout.h.
    static constexpr uint32_t kNeutral = 0x7f7f8080;

    NESTEDFP_DEVICE uint4 upper_of(const uint8_t* stage, int block, int row) const {
        return load_shared(stage + (block * Traits::kRows + row + lane_ / 4) * kBlockCols + lane_ % 4 * 16);
    }

    NESTEDFP_DEVICE uint4 lower_of(const uint8_t* stage, int row) const {
        if constexpr (!Traits::kHasLower) return make_uint4(kNeutral, kNeutral, kNeutral, kNeutral);
        return load_shared(stage + Traits::kLowerOffset + row * kBlockCols + lane_ * 16);
    }

    NESTEDFP_DEVICE void multiply_halves(const uint8_t* stage, PortableSums<Traits>& sums) const {
        constexpr int kRowFrags = Traits::kRowFrags;
        uint4 upper[kRowFrags][2], lower[kRowFrags][2];
#pragma unroll
        for (int r = 0; r < kRowFrags; ++r) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = first_row_ + r * 16 + half * 8;
                upper[r][half] = upper_of(stage, 0, row);
                lower[r][half] = lower_of(stage, row);
            }
        }
        // Two products of k = 16 at a time: one load_matrices is both operands of both.
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            uint32_t a[kRowFrags][2][4];
#pragma unroll
            for (int r = 0; r < kRowFrags; ++r) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint4 up = upper[r][half], low = lower[r][half];
                    decode4(pair == 0 ? up.x : up.z, pair == 0 ? low.x : low.z, a[r][0][half], a[r][0][half + 2]);
                    decode4(pair == 0 ? up.y : up.w, pair == 0 ? low.y : low.w, a[r][1][half], a[r][1][half + 2]);
                }
            }
#pragma unroll
            for (int t = 0; t < Traits::kTokenFrags; ++t) {
                const int token = first_token_ + t * 8 + lane_ % 8, chunk = pair * 4 + lane_ / 8;
                uint32_t b[4];
                load_matrices(b, stage + Traits::kXOffset + token * 128 + (chunk ^ token % 8) * 16);
#pragma unroll
                for (int r = 0; r < kRowFrags; ++r) {
                    multiply_fp16(sums.values[r][t], a[r][0], b[0], b[1]);
                    multiply_fp16(sums.values[r][t], a[r][1], b[2], b[3]);
                }
            }
        }
    }

    NESTEDFP_DEVICE void multiply_codes(const uint8_t* stage, int block, PortableSums<Traits>& sums) const {
        constexpr int kRowFrags = Traits::kRowFrags;
        uint32_t a[kRowFrags][2][4];
#pragma unroll
        for (int r = 0; r < kRowFrags; ++r) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 up = upper_of(stage, block, first_row_ + r * 16 + half * 8);
                a[r][0][half] = up.x;
                a[r][0][half + 2] = up.y;
                a[r][1][half] = up.z;
                a[r][1][half + 2] = up.w;
            }
        }
        const uint8_t* const x = stage + Traits::kXOffset + block * Traits::kTokens * kBlockCols;
#pragma unroll
        for (int t = 0; t < Traits::kTokenFrags; ++t) {
            const uint4 b = load_shared(x + (first_token_ + t * 8 + lane_ / 4) * kBlockCols + lane_ % 4 * 16);
#pragma unroll
            for (int r = 0; r < kRowFrags; ++r) {
                multiply_fp8(sums.values[r][t], a[r][0], b.x, b.y);
                multiply_fp8(sums.values[r][t], a[r][1], b.z, b.w);
            }
        }
    }

    const int lane_, first_row_, first_token_;
};

// The whole work of a thread of the grid.
template <class Traits>
NESTEDFP_DEVICE void portable_gemm(const PortableArgs& args) {
    constexpr int kStages = Traits::kStages;
    uint8_t* const ring = dynamic_shared();
    const PortableWork work = portable_work(args.plan, block_index());
    const PortableLoader<Traits> loader(args, work);
    const PortableConsumer<Traits> consumer;
    PortableSums<Traits> sums{};

    // A group for every stage, empty at the end, so that the count of groups says which stage is there.
    for (int ahead = 0; ahead < kStages - 1; ++ahead) {
        if (work.first_step + ahead < work.last_step)
            loader.load(work.first_step + ahead, ring + ahead * Traits::kStageBytes);
        cp_async_commit();
    }
    int slot = 0;
    for (int step = work.first_step; step < work.last_step; ++step) {
        cp_async_wait<kStages - 2>();
        sync_block();  // the stage is there for all threads, and all have done with the one before it
        const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
        if (step + kStages - 1 < work.last_step)
            loader.load(step + kStages - 1, ring + free_slot * Traits::kStageBytes);
        cp_async_commit();
        consumer.multiply(ring + slot * Traits::kStageBytes, sums);
        slot = slot == kStages - 1 ? 0 : slot + 1;
    }
    if (args.plan.split > 1 && !add_parts<Traits>(args, work, sums, ring)) return;
    store_tile<Traits>(args, work, consumer.first_row(), consumer.first_token(), sums);
}

}  // namespace nestedfp::cuda
