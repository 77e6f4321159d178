// Where one weight's two bytes lie in the packed planes. constexpr on host and device: the pack kernel, the GEMM and
// the tests use it.
//
// Within each 64 columns, K is permuted so that the 16 bytes at 16 * t are what thread t of a quad feeds to four wgmmas
// of k = 16, each thread's four k of one wgmma being neighbours:
//
// clang-format off
//     byte 16 * t + 4 * j + c  holds  k = 16 * j + 2 * t + {0, 8, 1, 9}[c]          j, t, c in 0..3
//
//   upper   [N, Kp], row-major, Kp = K padded to 64. A plain E4M3 matrix whose K axis is permuted: FP8 mode multiplies
//           it with activations that carry the same permutation.
//   lower   [ceil(N / 64)][Kq / 64] blocks of 4096 bytes, Kq = K padded to 128, then two neutral blocks. A block holds,
//           for warp w, half h and lane l, the 16 bytes of row 16 * w + 8 * h + l / 4 at t = l % 4: lane order, no gaps.
//           A byte is not the canonical lower byte but the residual of csrc/format.h plus {128, 128, 127, 127}[c], which
//           lets decode.cuh rebuild four weights in six instructions. A neutral block has residual 0 everywhere: with it
//           FP16 mode computes with the FP8 weights.
// clang-format on
#pragma once

#include <cstdint>

#include "format.h"

namespace nestedfp::cuda {

inline constexpr int kBlockRows = 64;
inline constexpr int kBlockCols = 64;
inline constexpr int kBlockBytes = kBlockRows * kBlockCols;
// Columns that the lower plane is padded to, and blocks of residual 0 behind it.
inline constexpr int kLowerColsMultiple = 128;
inline constexpr int kNeutralBlocks = 2;

NESTEDFP_HOST_DEVICE constexpr int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

NESTEDFP_HOST_DEVICE constexpr int64_t upper_pitch(int64_t k) { return round_up(k, kBlockCols); }
NESTEDFP_HOST_DEVICE constexpr int64_t lower_row_blocks(int64_t n) { return (n + kBlockRows - 1) / kBlockRows; }
NESTEDFP_HOST_DEVICE constexpr int64_t lower_col_blocks(int64_t k) {
    return round_up(k, kLowerColsMultiple) / kBlockCols;
}
NESTEDFP_HOST_DEVICE constexpr int64_t neutral_offset(int64_t n, int64_t k) {
    return lower_row_blocks(n) * lower_col_blocks(k) * kBlockBytes;
}
NESTEDFP_HOST_DEVICE constexpr int64_t lower_bytes(int64_t n, int64_t k) {
    return neutral_offset(n, k) + kNeutralBlocks * kBlockBytes;
}

// Column, within its 64, of the weight whose byte is at `position`, and back.
NESTEDFP_HOST_DEVICE constexpr int column_of(int position) {
    const int t = position / 16, j = position / 4 % 4, c = position % 4;
    return 16 * j + 2 * t + (c & 1) * 8 + (c >> 1);
}
NESTEDFP_HOST_DEVICE constexpr int position_of(int column) {
    const int j = column / 16, t = column / 2 % 4, c = (column / 8 % 2) + (column % 2) * 2;
    return 16 * t + 4 * j + c;
}

NESTEDFP_HOST_DEVICE constexpr int bias_of(int position) { return position % 4 < 2 ? 128 : 127; }

NESTEDFP_HOST_DEVICE constexpr uint8_t encode_lower(uint8_t lower, int position) {
    return static_cast<uint8_t>(lower_to_residual(lower) + bias_of(position));
}

static_assert(column_of(position_of(37)) == 37 && column_of(5) == 24 && position_of(0) == 0);

}  // namespace nestedfp::cuda
