// Operands of a GEMM from standard input, packed as the kernels read them.
#pragma once

#include <cstdio>
#include <vector>

#include "cuda/config/gemm.h"
#include "cuda/kernels/layout.h"
#include "grid.h"

namespace emulator {

// Exactly as long as the kernel may read, for the address sanitizer.
template <class T>
std::vector<T> read(int64_t count) {
    std::vector<T> data(static_cast<size_t>(count));
    if (std::fread(data.data(), sizeof(T), data.size(), stdin) != data.size()) fail("the input is too short");
    return data;
}

// The listed weights, whose x is the GEMM's: how many, then rows, columns and deltas.
struct Outliers {
    std::vector<int32_t> rows, cols;
    std::vector<float> deltas;

    Outliers() {
        const int64_t count = read<int64_t>(1)[0];
        rows = read<int32_t>(count), cols = read<int32_t>(count), deltas = read<float>(count);
    }

    nestedfp::cuda::OutlierList list(const uint8_t* x, int64_t x_pitch) const {
        return {reinterpret_cast<const uint16_t*>(x), x_pitch, rows.data(), cols.data(), deltas.data(),
                static_cast<int>(rows.size())};
    }
};

// A weight's planes, both read: canonical, [n, k].
struct PackedWeight {
    std::vector<uint8_t> upper, lower;

    PackedWeight(int64_t n, int64_t k) {
        using namespace nestedfp::cuda;
        const std::vector<uint8_t> plain_upper = read<uint8_t>(n * k), plain_lower = read<uint8_t>(n * k);
        upper.assign(static_cast<size_t>(n * upper_pitch(k)), 0);
        lower.assign(static_cast<size_t>(lower_bytes(n, k)), 0);
        for (int64_t at = 0; at < lower_bytes(n, k); ++at) {
            const int64_t row_block = at / kBlockBytes / lower_col_blocks(k);
            const int64_t col_block = at / kBlockBytes % lower_col_blocks(k);
            const int byte = static_cast<int>(at % kBlockBytes), position = byte % 64;
            const int64_t row = row_block * kBlockRows + byte / 64, col = col_block * kBlockCols + column_of(position);
            const bool is_inside = at < neutral_offset(n, k) && row < n && col < k;
            const auto from = static_cast<size_t>(row * k + col);
            lower[static_cast<size_t>(at)] = encode_lower(is_inside ? plain_lower[from] : 0, position);
            if (is_inside)
                upper[static_cast<size_t>(row * upper_pitch(k) + col_block * kBlockCols + position)] =
                    plain_upper[from];
        }
    }
};

}  // namespace emulator
