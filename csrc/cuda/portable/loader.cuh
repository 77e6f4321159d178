// From global to shared memory: one stage of the ring, the tile's weights and activations of one step along K.
//
// clang-format off
//     upper   [blocks][rows][64] bytes; of exact and FP16 products a row's four chunks of 16 are what the lanes of a quad
//             read, of E4M3 they lie at portable_code_chunk(), as those of x do
//     lower   [rows / 64] blocks of 4096 bytes as they are (layout.h); exact weights only
//     x       FP16: [tokens][64] elements, the eight chunks of 16 bytes of token t at chunk ^ t % 8, so that eight tokens'
//             chunks lie in different banks; E4M3: [blocks][tokens][64] bytes
// clang-format on
//
// What lies outside the matrices is zero. A thread copies the same places of every stage, so all but the step's part of
// an address is computed once: address arithmetic was four fifths of the main loop's instructions.
#pragma once

#include "cuda/portable/launch.h"
#include "cuda/portable/ptx.cuh"

namespace nestedfp::cuda {

// A thread's chunks of a matrix's rows [first, first + Rows), PerRow chunks of 16 bytes of each row: every Threads /
// PerRow rows one. A row beyond the matrix is not read, but its address is that of the last one.
template <int Rows, int PerRow, int Threads>
class PortableRows {
  public:
    static constexpr int kChunks = Rows * PerRow, kPasses = (kChunks + Threads - 1) / Threads;
    static constexpr int kRowsPerPass = Threads / PerRow;

    NESTEDFP_DEVICE PortableRows(const uint8_t* matrix, int64_t pitch_bytes, int first, int64_t rows) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            const int64_t row = first + row_of(thread_index()) + i * kRowsPerPass, last = rows - 1;
            is_inside_[i] = row <= last;
            from_[i] = matrix + (row < last ? row : last) * pitch_bytes;
        }
    }

    // The row, within the tile, and the chunk of it that a thread copies first.
    NESTEDFP_DEVICE static int row_of(int thread) { return static_cast<unsigned>(thread) / PerRow; }
    NESTEDFP_DEVICE static int chunk_of(int thread) { return static_cast<unsigned>(thread) % PerRow; }

    // The chunk of each row that lies `offset` bytes into it, `bytes` of it inside the matrix, to shared memory, where
    // rows are row_bytes apart.
    NESTEDFP_DEVICE void copy(int64_t offset, int bytes, uint8_t* to, int row_bytes) const {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            if ((i + 1) * Threads <= kChunks || thread_index() + i * Threads < kChunks)
                cp_async(to + i * kRowsPerPass * row_bytes, from_[i] + offset, is_inside_[i] ? bytes : 0);
        }
    }

  private:
    const uint8_t* from_[kPasses];
    bool is_inside_[kPasses];
};

template <class Traits>
class PortableLoader {
    static constexpr int kThreads = Traits::kThreads, kBlocks = Traits::kStepBlocks;
    using UpperRows = PortableRows<Traits::kRows, 4 * kBlocks, kThreads>;
    using TokenRows = PortableRows<Traits::kTokens, 8, kThreads>;

  public:
    NESTEDFP_DEVICE PortableLoader(const PortableArgs& args, const PortableWork& work)
        : upper_(args.upper, args.upper_pitch, work.row_tile * Traits::kRows, args.n),
          x_(static_cast<const uint8_t*>(args.x), Traits::kIsFp8 ? args.upper_pitch : args.x_pitch * 2,
             work.token_tile * Traits::kTokens, args.m),
          upper_pitch_(static_cast<int>(args.upper_pitch)),
          k_(static_cast<int>(args.k)) {
        if constexpr (Traits::kHasLower) {
            const int64_t row_block = static_cast<int64_t>(work.row_tile) * (Traits::kRows / kBlockRows);
            lower_blocks_ = static_cast<int>(args.lower_row_blocks - row_block);
            lower_stride_ = args.lower_col_blocks * kBlockBytes;
            lower_ = args.lower + row_block * lower_stride_ + thread_index() * 16;
        }
    }

    NESTEDFP_DEVICE void load(int step, uint8_t* stage) const {
        copy_blocks<Traits::kRows>(upper_, step, stage);
        if constexpr (Traits::kHasLower) load_lower(step, stage + Traits::kLowerOffset);
        if constexpr (Traits::kIsFp8) {
            copy_blocks<Traits::kTokens>(x_, step, stage + Traits::kXOffset);
        } else {
            load_halves(step, stage + Traits::kXOffset);
        }
    }

  private:
    // Blocks of 64 columns of a byte matrix, whose pitch is whole ones.
    template <int Rows, class Chunks>
    NESTEDFP_DEVICE void copy_blocks(const Chunks& rows, int step, uint8_t* to) const {
        const int chunk = Chunks::chunk_of(thread_index()), row = Chunks::row_of(thread_index());
        const int col = step * (kBlocks * kBlockCols) + chunk * 16;
        const int bytes = kBlocks == 1 || col < upper_pitch_ ? 16 : 0;  // one block: steps are whole ones
        static_assert(Chunks::kRowsPerPass % 8 == 0, "row % 8 is the same in every pass");
        const int in_row = Traits::kIsFp8 ? portable_code_chunk(chunk % 4, row & 7) : chunk % 4;
        rows.copy(col, bytes, to + (chunk / 4 * Rows + row) * kBlockCols + in_row * 16, kBlockCols);
    }

    NESTEDFP_DEVICE void load_lower(int step, uint8_t* to) const {
        constexpr int kBlockChunks = kBlockBytes / 16, kPasses = Traits::kRows / kBlockRows * kBlockChunks / kThreads;
        static_assert(kThreads == kBlockChunks || 2 * kThreads == kBlockChunks, "a pass is a block or half of one");
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            const int row_block = i * kThreads / kBlockChunks, in_block = i * kThreads % kBlockChunks * 16;
            const bool is_inside = row_block < lower_blocks_;
            const uint8_t* const from = lower_ + (is_inside ? row_block * lower_stride_ : 0) + in_block;
            cp_async(to + (thread_index() + i * kThreads) * 16, from + static_cast<int64_t>(step) * kBlockBytes,
                     is_inside ? 16 : 0);
        }
    }

    NESTEDFP_DEVICE void load_halves(int step, uint8_t* to) const {
        const int chunk = TokenRows::chunk_of(thread_index()), token = TokenRows::row_of(thread_index());
        static_assert(TokenRows::kRowsPerPass % 8 == 0, "token % 8 is the same in every pass");
        const int left = k_ - step * kBlockCols - chunk * 8;
        const int bytes = left >= 8 ? 16 : left > 0 ? left * 2 : 0;
        // Nothing left: an address that is there, of which nothing is read.
        const int64_t offset = left > 0 ? (static_cast<int64_t>(step) * kBlockCols + chunk * 8) * 2 : 0;
        x_.copy(offset, bytes, to + token * 128 + (chunk ^ (token & 7)) * 16, 128);
    }

    const UpperRows upper_;
    const TokenRows x_;
    const int upper_pitch_, k_;
    const uint8_t* lower_ = nullptr;
    int64_t lower_stride_ = 0;
    int lower_blocks_ = 0;
};

}  // namespace nestedfp::cuda
