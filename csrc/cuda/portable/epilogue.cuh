// From sums to D: adds the parts of a split tile, then scale, bias, rounding and stores of the portable GEMM.
#pragma once

#include "cuda/kernels/outlier_walk.cuh"
#include "cuda/portable/launch.h"
#include "cuda/portable/ptx.cuh"

namespace nestedfp::cuda {

// A thread's sums, as PTX's mma.m16n8 has them: of rows lane / 4 and lane / 4 + 8 (values[..][2] on) and tokens
// 2 * (lane % 4) and the next.
template <class Traits>
struct PortableSums {
    float values[Traits::kRowFrags][Traits::kTokenFrags][4];
};

// Leaves this part's sums in the workspace. True in the thread block that comes last, whose sums are then those of all
// parts, added in their order whichever came last: the same bits every time.
template <class Traits>
NESTEDFP_DEVICE bool add_parts(const PortableArgs& args, const PortableWork& work, PortableSums<Traits>& sums,
                               uint8_t* shared) {
    constexpr int64_t kPartSums = Traits::kTile.sums() * Traits::kThreads;
    float* const tile = args.workspace + static_cast<int64_t>(work.tile) * args.plan.split * kPartSums + thread_index();
    float* const flat = &sums.values[0][0][0];
#pragma unroll
    for (int i = 0; i < Traits::kTile.sums(); ++i) tile[work.part * kPartSums + i * Traits::kThreads] = flat[i];
    sync_block();  // all threads' sums are out, and nobody reads the ring any more
    int* const came_before = reinterpret_cast<int*>(shared);
    if (thread_index() == 0) {
        *came_before = count_up(args.semaphores + work.tile);
        if (*came_before == args.plan.split - 1) args.semaphores[work.tile] = 0;  // for the next launch
    }
    sync_block();
    if (*came_before != args.plan.split - 1) return false;
#pragma unroll
    for (int i = 0; i < Traits::kTile.sums(); ++i) flat[i] = 0;
    for (int part = 0; part < args.plan.split; ++part) {
#pragma unroll
        for (int i = 0; i < Traits::kTile.sums(); ++i)
            flat[i] += load_fresh(tile + part * kPartSums + i * Traits::kThreads);
    }
    return true;
}

// Two neighbouring features of a token: halves[0] at `feature`, an even number.
NESTEDFP_DEVICE void store_pair(const PortableArgs& args, int64_t token, int64_t feature, uint32_t halves) {
    if (token >= args.m || feature >= args.n) return;
    uint16_t* const to = static_cast<uint16_t*>(args.out) + token * args.n + feature;
    if (args.n % 2 == 0) {
        *reinterpret_cast<uint32_t*>(to) = halves;
        return;
    }
    to[0] = static_cast<uint16_t>(halves);
    if (feature + 1 < args.n) to[1] = static_cast<uint16_t>(halves >> 16);
}

// first_row, first_token: the warp's, within the tile.
template <class Traits>
NESTEDFP_DEVICE void store_tile(const PortableArgs& args, const PortableWork& work, int first_row, int first_token,
                                const PortableSums<Traits>& sums) {
    const int lane = thread_index() % 32;
    const int64_t tile_row = static_cast<int64_t>(work.row_tile) * Traits::kRows + first_row;
    const int64_t tile_token = static_cast<int64_t>(work.token_tile) * Traits::kTokens + first_token;
    const auto* const biases = static_cast<const uint16_t*>(args.bias);
    float bias[Traits::kRowFrags][2];
    int outlier[Traits::kRowFrags][2] = {};
#pragma unroll
    for (int r = 0; r < Traits::kRowFrags; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t row = tile_row + r * 16 + half * 8 + lane / 4;
            if (args.outliers.count > 0) outlier[r][half] = first_outlier(args.outliers, row);
            bias[r][half] = biases != nullptr && row < args.n ? half_to_float(biases[row]) : 0;
        }
    }
#pragma unroll
    for (int t = 0; t < Traits::kTokenFrags; ++t) {
        const int64_t frag_token = tile_token + t * 8, token = frag_token + lane % 4 * 2;
        float scale[2] = {1, 1};
        if constexpr (Traits::kIsFp8) {  // the upper plane is kUpperScale times the weight
#pragma unroll
            for (int i = 0; i < 2; ++i)
                scale[i] = token + i < args.m ? args.token_scale[token + i] * (1.0f / kUpperScale) : 0;
        }
#pragma unroll
        for (int r = 0; r < Traits::kRowFrags; ++r) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* const sum = &sums.values[r][t][half * 2];
                float v[2] = {fmaf(sum[0], scale[0], bias[r][half]), fmaf(sum[1], scale[1], bias[r][half])};
                if (args.outliers.count > 0) {
                    for (int i = outlier[r][half]; i >= 0; i = next_outlier(args.outliers, i)) {
                        const uint16_t* const x =
                            args.outliers.x + token * args.outliers.x_pitch + args.outliers.cols[i];
                        if (token < args.m) v[0] = fmaf(half_to_float(*x), args.outliers.deltas[i], v[0]);
                        if (token + 1 < args.m)
                            v[1] = fmaf(half_to_float(x[args.outliers.x_pitch]), args.outliers.deltas[i], v[1]);
                    }
                }
                const uint32_t by_feature = to_halves(v[0], v[1]);
                // Now a lane has two tokens of a feature; memory wants two features of a token.
                store_pair(args, frag_token + lane / 4, tile_row + r * 16 + half * 8 + lane % 4 * 2,
                           transpose(by_feature));
            }
        }
    }
}

}  // namespace nestedfp::cuda
