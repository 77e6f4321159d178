// From global to shared memory: one stage of the ring, the tile's weights and activations of one step along K.
//
// clang-format off
//     upper   [blocks][rows][64] bytes: a row's four chunks of 16 are what the lanes of a quad read
//     lower   [rows / 64] blocks of 4096 bytes as they are (layout.h); exact weights only
//     x       FP16: [tokens][64] elements, the eight chunks of 16 bytes of token t at chunk ^ t % 8, so that eight tokens'
//             chunks lie in different banks; E4M3: [blocks][tokens][64] bytes, as upper
// clang-format on
//
// What lies outside the matrices is zero.
#pragma once

#include "cuda/portable/args.h"
#include "cuda/portable/ptx.cuh"

namespace nestedfp::cuda {

template <class Traits>
class PortableLoader {
  public:
    NESTEDFP_DEVICE PortableLoader(const PortableArgs& args, const PortableWork& work)
        : args_(args), first_row_(work.row_tile * Traits::kRows), first_token_(work.token_tile * Traits::kTokens) {}

    NESTEDFP_DEVICE void load(int step, uint8_t* stage) const {
        load_upper(step, stage);
        if constexpr (Traits::kHasLower) load_lower(step, stage + Traits::kLowerOffset);
        if constexpr (Traits::kIsFp8) {
            load_codes(step, stage + Traits::kXOffset);
        } else {
            load_halves(step, stage + Traits::kXOffset);
        }
    }

  private:
    NESTEDFP_DEVICE void load_upper(int step, uint8_t* to) const {
        load_rows<Traits::kRows>(args_.upper, args_.upper_pitch, first_row_, args_.n, step, to);
    }

    NESTEDFP_DEVICE void load_codes(int step, uint8_t* to) const {
        load_rows<Traits::kTokens>(static_cast<const uint8_t*>(args_.x), args_.upper_pitch, first_token_, args_.m, step,
                                   to);
    }

    // Rows of a byte matrix whose pitch is whole blocks of 64 columns.
    template <int Rows>
    NESTEDFP_DEVICE void load_rows(const uint8_t* matrix, int64_t pitch, int first, int64_t rows, int step,
                                   uint8_t* to) const {
        constexpr int kBlocks = Traits::kStepBlocks, kChunks = Rows * kBlocks * 4;
#pragma unroll
        for (int i = thread_index(); i < kChunks; i += Traits::kThreads) {
            const int chunk = i % 4, block = i / 4 % kBlocks, row = i / (4 * kBlocks);
            const int64_t col = static_cast<int64_t>(step * kBlocks + block) * kBlockCols;
            const bool is_inside = first + row < rows && col < pitch;
            const uint8_t* const from = is_inside ? matrix + (first + row) * pitch + col + chunk * 16 : matrix;
            cp_async(to + (block * Rows + row) * kBlockCols + chunk * 16, from, is_inside ? 16 : 0);
        }
    }

    NESTEDFP_DEVICE void load_lower(int step, uint8_t* to) const {
        constexpr int kBlockChunks = kBlockBytes / 16, kChunks = Traits::kRows / kBlockRows * kBlockChunks;
#pragma unroll
        for (int i = thread_index(); i < kChunks; i += Traits::kThreads) {
            const int64_t row_block = first_row_ / kBlockRows + i / kBlockChunks;
            const bool is_inside = row_block < args_.lower_row_blocks;
            const int64_t at = (row_block * args_.lower_col_blocks + step) * kBlockBytes + i % kBlockChunks * 16;
            cp_async(to + i * 16, is_inside ? args_.lower + at : args_.lower, is_inside ? 16 : 0);
        }
    }

    NESTEDFP_DEVICE void load_halves(int step, uint8_t* to) const {
        const auto* const x = static_cast<const uint16_t*>(args_.x);
        constexpr int kChunks = Traits::kTokens * 8;
#pragma unroll
        for (int i = thread_index(); i < kChunks; i += Traits::kThreads) {
            const int chunk = i % 8, token = i / 8;
            const int64_t col = static_cast<int64_t>(step) * kBlockCols + chunk * 8, left = args_.k - col;
            const bool is_inside = first_token_ + token < args_.m && left > 0;
            const uint16_t* const from = is_inside ? x + (first_token_ + token) * args_.x_pitch + col : x;
            cp_async(to + token * 128 + (chunk ^ token % 8) * 16, from,
                     !is_inside ? 0
                     : left < 8 ? static_cast<int>(left) * 2
                                : 16);
        }
    }

    const PortableArgs& args_;
    const int first_row_, first_token_;
};

}  // namespace nestedfp::cuda
