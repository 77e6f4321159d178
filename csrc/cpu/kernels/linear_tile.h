// One tile of D[M,N] = X[M,K] @ W[N,K].T, over a vector type V (kernels_avx2.cpp).
//
// One block of rows (decode): `stream` walks K once and rebuilds a few FP16 words at a time; the weights are read from
// memory exactly once and nothing is written but the results.
// Several blocks (prefill): a stretch of a panel is rebuilt in the first-level cache, and every block of rows runs
// `multiply` over it.
//
// Both do the same fused multiply-adds on every output element in the same order. See words256.h for the unnamed
// namespace.
#pragma once

#include <array>
#include <utility>

#include "cpu/kernels/half.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/words256.h"

namespace nestedfp::cpu {
namespace {

// Pairs of k whose FP16 words `stream` rebuilds at a time: 512 bytes a panel, so that four panels leave the first-level
// cache to X.
inline constexpr int64_t kStreamPairs = 8;

// One register each: 16 outputs of `panels` panels for one block of rows.
template <class V, int rows, int panels>
using Sums = typename V::Reg[panels][rows][V::kVecs];

// sums += x[depth][rows] * words[panels][depth][16].
template <class V, int rows, int panels>
inline void accumulate(const float* x, const uint16_t* const* words, int64_t depth, Sums<V, rows, panels>& sums) {
    for (int64_t k = 0; k < depth; ++k) {
        typename V::Reg w[panels][V::kVecs];
#pragma GCC unroll 4
        for (int panel = 0; panel < panels; ++panel) {
#pragma GCC unroll 2
            for (int v = 0; v < V::kVecs; ++v) w[panel][v] = V::load_words(words[panel] + k * kPanel + v * V::kLanes);
        }
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) {
            const typename V::Reg value = V::broadcast(x + k * rows + row);
#pragma GCC unroll 4
            for (int panel = 0; panel < panels; ++panel) {
#pragma GCC unroll 2
                for (int v = 0; v < V::kVecs; ++v)
                    sums[panel][row][v] = V::fma(value, w[panel][v], sums[panel][row][v]);
            }
        }
    }
}

template <class V, int rows, int panels, class Function>
inline void for_each_sum(Sums<V, rows, panels>& sums, const Function& function) {
#pragma GCC unroll 4
    for (int panel = 0; panel < panels; ++panel) {
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 2
            for (int v = 0; v < V::kVecs; ++v) function(sums[panel][row][v], panel, row * kPanel + v * V::kLanes);
        }
    }
}

// c[panels][rows][16] = all of K for `panels` neighbouring panels and one block of rows.
template <class V, Weights weights, int rows, int panels>
void stream(const LinearArgs& args, int64_t first_panel, const float* x, float* c) {
    alignas(64) uint16_t scratch[panels][kStreamPairs * 2 * kPanel];
    PanelCursor cursor[panels];
    for (int panel = 0; panel < panels; ++panel) cursor[panel] = panel_cursor<weights>(args, first_panel + panel);
    Sums<V, rows, panels> sums;
    for_each_sum<V, rows, panels>(sums, [](typename V::Reg& sum, int, int) { sum = V::zero(); });
    for (int64_t pairs_left = pair_count(args.k); pairs_left > 0; pairs_left -= kStreamPairs) {
        const int64_t pairs = pairs_left < kStreamPairs ? pairs_left : kStreamPairs;
        const uint16_t* words[panels];
#pragma GCC unroll 4
        for (int panel = 0; panel < panels; ++panel)
            words[panel] = next_words<weights>(cursor[panel], pairs, scratch[panel]);
        accumulate<V, rows, panels>(x, words, 2 * pairs, sums);
        x += 2 * pairs * rows;
    }
    for_each_sum<V, rows, panels>(
        sums, [c](typename V::Reg& sum, int panel, int at) { V::store(c + panel * rows * kPanel + at, sum); });
}

// c[rows][16] += x[depth][rows] * words[depth][16].
template <class V, int rows>
void multiply(const float* x, const uint16_t* words, int64_t depth, float* c) {
    Sums<V, rows, 1> sums;
    for_each_sum<V, rows, 1>(sums, [c](typename V::Reg& sum, int, int at) { sum = V::load(c + at); });
    accumulate<V, rows, 1>(x, &words, depth, sums);
    for_each_sum<V, rows, 1>(sums, [c](typename V::Reg& sum, int, int at) { V::store(c + at, sum); });
}

inline int64_t first_outlier_from(const LinearArgs& args, int64_t n) {
    int64_t low = 0;
    for (int64_t high = args.outliers; low < high;) {
        const int64_t middle = (low + high) / 2;
        if (args.outlier_rows[middle] < n) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Token scales, outliers, bias, one rounding, store: c[rows][16] of one panel into `out`.
template <class V, class T>
void finish_panel(const LinearArgs& args, int64_t panel, int64_t first_row, int64_t rows, float* c) {
    const int64_t n = panel * kPanel;
    const int64_t width = args.n - n < kPanel ? args.n - n : kPanel;
    if (args.token_scale != nullptr) {
        for (int64_t row = 0; row < rows; ++row) {
            const float scale = args.token_scale[first_row + row];
            for (int j = 0; j < kPanel; ++j) c[row * kPanel + j] *= scale;
        }
    }
    if (args.outliers > 0) {
        for (int64_t i = first_outlier_from(args, n); i < args.outliers && args.outlier_rows[i] < n + width; ++i) {
            for (int64_t row = 0; row < rows; ++row) {
                const float x = element_at(args.x, args.element, (first_row + row) * args.k + args.outlier_cols[i]);
                float& sum = c[row * kPanel + args.outlier_rows[i] - n];
                sum = __builtin_fmaf(x, args.outlier_deltas[i], sum);
            }
        }
    }
    alignas(64) float bias[kPanel] = {};
    if (args.bias != nullptr) {
        for (int64_t j = 0; j < width; ++j) bias[j] = element_at(args.bias, args.bias_element, n + j);
    }
    T* out = static_cast<T*>(args.out) + first_row * args.n + n;
    for (int64_t row = 0; row < rows; ++row, out += args.n) {
        alignas(64) T last[kPanel];
        T* const target = width == kPanel ? out : last;
#pragma GCC unroll 2
        for (int v = 0; v < V::kVecs; ++v) {
            typename V::Reg sum = V::load(c + row * kPanel + v * V::kLanes);
            if (args.bias != nullptr) sum = V::add(sum, V::load(bias + v * V::kLanes));
            V::store_as(target + v * V::kLanes, sum);
        }
        if (width < kPanel) {
            for (int64_t j = 0; j < width; ++j) out[j] = last[j];
        }
    }
}

template <class V>
void finish(const LinearArgs& args, int64_t panel, int64_t first_row, int64_t rows, float* c) {
    if (args.element == Element::kHalf) return finish_panel<V, Half>(args, panel, first_row, rows, c);
    finish_panel<V, float>(args, panel, first_row, rows, c);
}

template <class V, Weights weights, int rows>
void stream_panels(const LinearArgs& args, int64_t first_row, int64_t panel, int64_t panel_end) {
    constexpr int kPanels = V::stream_panels(rows);
    alignas(64) float c[kPanels * rows * kPanel];
    const float* const x = args.packed_x + first_row * 2 * pair_count(args.k);
    for (; panel + kPanels <= panel_end; panel += kPanels) {
        stream<V, weights, rows, kPanels>(args, panel, x, c);
        for (int i = 0; i < kPanels; ++i) finish<V>(args, panel + i, first_row, rows, c + i * rows * kPanel);
    }
    for (; panel < panel_end; ++panel) {
        stream<V, weights, rows, 1>(args, panel, x, c);
        finish<V>(args, panel, first_row, rows, c);
    }
}

using StreamFn = void (*)(const LinearArgs&, int64_t, int64_t, int64_t);
using MultiplyFn = void (*)(const float*, const uint16_t*, int64_t, float*);

// The kernels for blocks of 1 to V::kBlockRows rows, in order.
template <class V, Weights weights, int... i>
constexpr std::array<StreamFn, V::kBlockRows> streams(std::integer_sequence<int, i...>) {
    return {stream_panels<V, weights, i + 1>...};
}
template <class V, int... i>
constexpr std::array<MultiplyFn, V::kBlockRows> multiplies(std::integer_sequence<int, i...>) {
    return {multiply<V, i + 1>...};
}

template <class V, Weights weights>
void multiply_tile(const LinearArgs& args, Tile tile) {
    static constexpr auto kMultiplies = multiplies<V>(std::make_integer_sequence<int, V::kBlockRows>{});
    alignas(64) float c[kMaxTilePanels * kMaxTileRows * kPanel];
    alignas(64) uint16_t scratch[2 * V::kDepthPairs * kPanel];
    const int64_t blocks = block_count(args.m, V::kBlockRows);
    const int64_t pairs = pair_count(args.k);
    const int64_t first_row = block_begin(args.m, blocks, tile.block_begin);
    const int64_t rows = block_begin(args.m, blocks, tile.block_end) - first_row;
    const int64_t panel_stride = rows * kPanel;
    for (int64_t i = 0; i < (tile.panel_end - tile.panel_begin) * panel_stride; ++i) c[i] = 0.0f;
    PanelCursor cursor[kMaxTilePanels];
    for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
        cursor[panel - tile.panel_begin] = panel_cursor<weights>(args, panel);
    }

    for (int64_t pair = 0; pair < pairs; pair += V::kDepthPairs) {
        const int64_t depth_pairs = pairs - pair < V::kDepthPairs ? pairs - pair : V::kDepthPairs;
        for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
            const uint16_t* const words = next_words<weights>(cursor[panel - tile.panel_begin], depth_pairs, scratch);
            for (int64_t block = tile.block_begin; block < tile.block_end; ++block) {
                const int64_t row = block_begin(args.m, blocks, block);
                const int64_t block_rows = block_begin(args.m, blocks, block + 1) - row;
                kMultiplies[block_rows - 1](args.packed_x + row * 2 * pairs + 2 * pair * block_rows, words,
                                            2 * depth_pairs,
                                            c + (panel - tile.panel_begin) * panel_stride + (row - first_row) * kPanel);
            }
        }
    }
    for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
        finish<V>(args, panel, first_row, rows, c + (panel - tile.panel_begin) * panel_stride);
    }
}

template <class V, Weights weights>
void linear(const LinearArgs& args, Tile tile) {
    const int64_t blocks = block_count(args.m, V::kBlockRows);
    if (tile.block_end - tile.block_begin == 1) {
        const int64_t row = block_begin(args.m, blocks, tile.block_begin);
        const int64_t rows = block_begin(args.m, blocks, tile.block_begin + 1) - row;
        static constexpr auto kStreams = streams<V, weights>(std::make_integer_sequence<int, V::kBlockRows>{});
        kStreams[rows - 1](args, row, tile.panel_begin, tile.panel_end);
    } else {
        multiply_tile<V, weights>(args, tile);
    }
}

template <class V>
constexpr Kernels make_table(const char* isa, decltype(Kernels::pack_rows) pack) {
    return {isa, V::kBlockRows, split_words, pack, {linear<V, Weights::kFp16>, linear<V, Weights::kFp8>}};
}

}  // namespace
}  // namespace nestedfp::cpu
