// The portable GEMM: D[M,N] = X[M,K] @ W[N,K]^T on any GPU from compute capability 8.0 on, with the packed planes and
// the decoder of the Hopper kernel.
//
// As there the weights are the M operand of the tensor cores and the tokens their N operand, so that one token costs 8
// columns and not 64. Here both go through registers (mma.sync). Of a block of 64 columns a lane reads the 16 bytes at
// 16 * t of its rows, which layout.h has put there for it, from each plane; decoded they are its fragments of four
// products of k = 16. E4M3 needs no decoding: load_matrices hands out the bytes of weights and codes as they lie, into
// registers that the product can take as they are, and any order of k is right that both agree on. cp.async keeps a
// ring of stages filled, Multistage as in CUTLASS's sm80 kernels.
#pragma once

#include "cuda/gemm/decode.cuh"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/loader.cuh"

namespace nestedfp::cuda {

template <class Traits>
class PortableConsumer {
  public:
    NESTEDFP_DEVICE PortableConsumer()
        : first_row_(static_cast<int>(warp() / Traits::kTokenWarps) * Traits::kRowFrags * 16),
          first_token_(static_cast<int>(warp() % Traits::kTokenWarps) * Traits::kTokenFrags * 8),
          upper_at_(Traits::kIsFp8 ? code_row_at() : upper_row_at()),
          lower_at_(Traits::kLowerOffset + first_row_ * kBlockCols + static_cast<int>(lane()) * 16),
          x_at_(Traits::kXOffset + (Traits::kIsFp8 ? code_token_at() : half_token_at())) {}

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

    NESTEDFP_DEVICE static unsigned lane() { return static_cast<unsigned>(thread_index()) % 32; }
    NESTEDFP_DEVICE static unsigned warp() { return static_cast<unsigned>(thread_index()) / 32; }

    // Where a lane's part of the weights begins in a stage: its 16 bytes of a row, or, of E4M3, the row of
    // load_matrices that it names: two matrices of the first 16 columns, rows 0 to 7 and 8 to 15, and two of the
    // next 16.
    NESTEDFP_DEVICE int upper_row_at() const {
        return (first_row_ + static_cast<int>(lane() / 4)) * kBlockCols + static_cast<int>(lane() % 4) * 16;
    }
    NESTEDFP_DEVICE int code_row_at() const {
        return (first_row_ + static_cast<int>(lane() % 16)) * kBlockCols +
               portable_code_chunk(lane() / 16, lane() % 8) * 16;
    }

    // The same of the activations: the first 32 columns of eight tokens, or 64 if they are codes.
    NESTEDFP_DEVICE int half_token_at() const {
        return (first_token_ + static_cast<int>(lane() % 8)) * 128 + static_cast<int>(lane() / 8 ^ lane() % 8) * 16;
    }
    NESTEDFP_DEVICE int code_token_at() const {
        return (first_token_ + static_cast<int>(lane() % 8)) * kBlockCols +
               portable_code_chunk(lane() / 8, lane() % 8) * 16;
    }

    // row: of the warp's, a multiple of 8.
    NESTEDFP_DEVICE uint4 upper_of(const uint8_t* stage, int row) const {
        return load_shared(stage + upper_at_ + row * kBlockCols);
    }

    NESTEDFP_DEVICE uint4 lower_of(const uint8_t* stage, int row) const {
        if constexpr (!Traits::kHasLower) return make_uint4(kNeutral, kNeutral, kNeutral, kNeutral);
        return load_shared(stage + lower_at_ + row * kBlockCols);
    }

    NESTEDFP_DEVICE void multiply_halves(const uint8_t* stage, PortableSums<Traits>& sums) const {
        constexpr int kRowFrags = Traits::kRowFrags;
        uint4 upper[kRowFrags][2], lower[kRowFrags][2];
#pragma unroll
        for (int r = 0; r < kRowFrags; ++r) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                upper[r][half] = upper_of(stage, r * 16 + half * 8);
                lower[r][half] = lower_of(stage, r * 16 + half * 8);
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
                uint32_t b[4];
                load_matrices(b, stage + (x_at_ ^ pair * 64) + t * 8 * 128);  // four chunks on, in the swizzle
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
            for (int i = 0; i < 2; ++i)  // two chunks on, in the swizzle
                load_matrices(a[r][i], stage + (upper_at_ ^ i * 32) + (block * Traits::kRows + r * 16) * kBlockCols);
        }
#pragma unroll
        for (int t = 0; t < Traits::kTokenFrags; ++t) {
            uint32_t b[4];
            load_matrices(b, stage + x_at_ + (block * Traits::kTokens + t * 8) * kBlockCols);
#pragma unroll
            for (int r = 0; r < kRowFrags; ++r) {
                multiply_fp8(sums.values[r][t], a[r][0], b[0], b[1]);
                multiply_fp8(sums.values[r][t], a[r][1], b[2], b[3]);
            }
        }
    }

    const int first_row_, first_token_, upper_at_, lower_at_, x_at_;
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
