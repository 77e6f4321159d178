// The kernels as plain loops: what the vector kernels must reproduce bit for bit, and what processors without AVX2 run.
#include <cmath>

#include "activations.h"
#include "cpu/kernels/half.h"
#include "cpu/kernels/kernels.h"
#include "format.h"

namespace nestedfp::cpu {
namespace {

SplitCounts split_words(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count) {
    SplitCounts counts{0, 0};
    for (int64_t i = 0; i < count; ++i) {
        const bool finite = is_finite(weight[i]);
        counts.nonfinite += !finite;
        counts.outliers += finite && !is_nestable(weight[i]);
        const Nested nested = split(clamp_to_limit(weight[i]));
        upper[i] = nested.upper;
        lower[i] = nested.lower;
    }
    return counts;
}

void store(void* data, Element element, int64_t index, float value) {
    if (element == Element::kHalf) return from_float(value, static_cast<Half*>(data) + index);
    static_cast<float*>(data)[index] = value;
}

// Value of the E4M3 code nearest to `x` (ties to even), which must lie in +-kE4m3Max.
float round_to_e4m3(float x) {
    const uint32_t bits = float_to_bits(x);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude < 0x3c800000) {  // below 2^-6: multiples of 2^-9, which adding 1.5 * 2^(23 - 9) rounds to
        const float rounded = (bits_to_float(magnitude) + 0x1.8p14f) - 0x1.8p14f;
        return bits_to_float((bits & 0x80000000) | float_to_bits(rounded));
    }
    return bits_to_float((bits + 0x7ffff + (bits >> 20 & 1)) & ~0xfffffu);
}

// A row with a NaN or an infinity gets a NaN scale, so that its outputs are all
// NaN.
float quantize_row(float* row, int64_t k) {
    uint32_t largest = 0;  // magnitudes order as integers, NaNs above infinity
    for (int64_t i = 0; i < k; ++i) {
        const uint32_t magnitude = float_to_bits(row[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7f800000) {
        for (int64_t i = 0; i < k; ++i) row[i] = 0.0f;
        return bits_to_float(0x7fc00000);
    }
    const float wanted = bits_to_float(largest) / kE4m3Max;
    const float scale = wanted > kMinScale ? wanted : kMinScale;
    for (int64_t i = 0; i < k; ++i) {
        const float scaled = row[i] / scale;
        row[i] = round_to_e4m3(scaled > kE4m3Max ? kE4m3Max : scaled < -kE4m3Max ? -kE4m3Max : scaled);
    }
    return scale;
}

// One row per block, so a packed block is simply the row.
void pack_rows(const PackRowsArgs& args, int64_t block_begin, int64_t block_end) {
    const int64_t padded_k = 2 * pair_count(args.k);
    for (int64_t row = block_begin; row < block_end; ++row) {
        float* const packed = args.packed + row * padded_k;
        for (int64_t i = 0; i < args.k; ++i) packed[i] = element_at(args.x, args.element, row * args.k + i);
        if (padded_k > args.k) packed[args.k] = 0.0f;
        if (args.quantize) args.token_scale[row] = quantize_row(packed, args.k);
    }
}

template <Weights weights>
float weight_at(const LinearArgs& args, int64_t n, int64_t k) {
    const int64_t pair = (n / kPanel * pair_count(args.k) + k / 2) * kPairBytes;
    const int64_t index = pair + n % kPanel * 2 + k % 2;
    if constexpr (weights == Weights::kFp8) return to_float(Half{upper_to_half(args.upper[index])});
    return to_float(Half{join_residual(args.upper[index], args.residual[index])});
}

template <Weights weights>
void linear(const LinearArgs& args, Tile tile) {
    const int64_t n_end = tile.panel_end * kPanel < args.n ? tile.panel_end * kPanel : args.n;
    int64_t first_outlier = 0;
    for (int64_t n = tile.panel_begin * kPanel; n < n_end; ++n) {
        while (first_outlier < args.outliers && args.outlier_rows[first_outlier] < n) ++first_outlier;
        for (int64_t m = tile.block_begin; m < tile.block_end; ++m) {
            const float* const x = args.packed_x + m * 2 * pair_count(args.k);
            float sum = 0.0f;
            for (int64_t k = 0; k < args.k; ++k) sum = std::fma(x[k], weight_at<weights>(args, n, k), sum);
            if (args.token_scale != nullptr) sum *= args.token_scale[m];
            for (int64_t i = first_outlier; i < args.outliers && args.outlier_rows[i] == n; ++i) {
                sum = std::fma(element_at(args.x, args.element, m * args.k + args.outlier_cols[i]),
                               args.outlier_deltas[i], sum);
            }
            if (args.bias != nullptr) sum += element_at(args.bias, args.bias_element, n);
            store(args.out, args.element, m * args.n + n, sum);
        }
    }
}

constexpr Kernels kTable = {"scalar",
                            /*block_rows=*/1,
                            split_words,
                            pack_rows,
                            {linear<Weights::kFp16>, linear<Weights::kFp8>}};

}  // namespace

const Kernels* scalar_kernels() { return &kTable; }

}  // namespace nestedfp::cpu
