// From accumulators to D: adds the K slices of one block, then the parts of a split tile, in a cluster or through a
// workspace (workspace_parts.cuh), then scale, bias, rounding and the store.
#pragma once

#include <cuda_fp16.h>

#include "cuda/gemm/experts_schedule.cuh"
#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/gemm/sums.cuh"
#include "cuda/gemm/token_rows.cuh"
#include "cuda/gemm/workspace_parts.cuh"
#include "cuda/kernels/outlier_walk.cuh"
#include "cuda/kernels/silu_and_mul.cuh"
#include "format.h"

namespace nestedfp::cuda {

template <class T>
class Epilogue {
  public:
    NESTEDFP_DEVICE Epilogue(const KernelArgs& args, uint32_t stages, int row_warpgroup, int k_warpgroup, int rank)
        : args_(args),
          stages_(stages),
          row_warpgroup_(row_warpgroup),
          k_warpgroup_(k_warpgroup),
          split_(args.plan.cluster),
          cta_rank_(T::kMulticastCtas == 2 ? rank : 0),
          rank_(rank) {}

    // Call before the main loop: what the epilogue reads from memory is under way while the tensor cores work.
    NESTEDFP_DEVICE void prefetch(const Work& work) {
        if constexpr (T::kIsScaled) {
            if (k_warpgroup_ > 0) return;
            wait_once();
            const int token_tile = place_of<T>(args_, work).token_tile;
#pragma unroll
            for (int i = 0; i < kScales; ++i) {
                const int token = i * 128 + threadIdx.x % 128;
                scale_[i] = scale_of(token_tile, token);
                if constexpr (T::kExperts) {
                    row_[i] = token < T::kTokens ? output_row<T>(args_, token_tile, token) : -1;
                    if (is_gated() && row_[i] >= 0) row_[i] = token_tile * T::kTokens + token;
                }
            }
        }
    }

    NESTEDFP_DEVICE void run(float (&sum)[T::kAccumulators], const Work& work) {
        if constexpr (T::kExperts) return store_units<kUnits>(sum, 0, make_target(work));
        if constexpr (T::kKWarpgroups > 1) add_slices(sum);
        if (args_.outliers.count > 0 && work.part == 0 && k_warpgroup_ == 0) add_outliers(sum, work);
        const bool is_split = work.parts > 1;
        // A cluster synchronises with all warps of its blocks.
        if (k_warpgroup_ > 0 && !(is_split && split_ > 1)) return;
        if (is_split && split_ == 1) {
            wait_once();  // the kernel before this one may still use the workspace
            if (!WorkspaceParts<T>(args_, stages_, row_warpgroup_, cta_rank_).reduce(sum, work)) return;
        }
        const Target target = make_target(work);
        if (!is_split || split_ == 1) {
            store_units<kUnits>(sum, 0, target);
        } else if (split_ == 2 && kUnits % 2 == 0) {
            store_cluster_of_two(sum, target);
        } else {
            store_cluster(sum, target);
        }
    }

  private:
    static constexpr int kUnits = T::kTokens / 16;  // a unit is 16 tokens: 8 accumulators of a thread
    static constexpr int kUnitBytes = 4096;         // of one warpgroup's FP32 sums
    static constexpr int kChunkUnits = T::kChunkTokens / 16;
    static constexpr int kScales = (T::kTokens + 127) / 128;  // token scales that a thread prefetches
    static_assert(T::kRingBytes >= (kUnits + kMaxClusterParts - 1) * T::kRowWarpgroups * kUnitBytes,
                  "partial sums of a cluster are received in the memory of the stages");

    NESTEDFP_DEVICE bool is_gated() const { return T::kExperts && args_.experts.is_gated; }

    // What a token's sums are multiplied by; `token` of the tile.
    NESTEDFP_DEVICE float scale_of(int token_tile, int token) const {
        if constexpr (T::kExperts) {
            if (args_.token_scale == nullptr || token >= T::kTokens) return 1.0f;
            return __ldcg(args_.token_scale + token_tile * T::kTokens + token);
        }
        if constexpr (T::kExact > 0) {
            if (token < T::kExact) return 1.0f;
        }
        const int row = output_row<T>(args_, token_tile, token);
        if (row < 0) return 0.0f;
        return __ldcg(args_.token_scale + row - (T::kExact > 0 ? args_.exact_rows : 0)) * (1.0f / kUpperScale);
    }

    NESTEDFP_DEVICE int unit_begin(int rank) const { return rank * kUnits / args_.plan.cluster; }

    // Adds the listed weights' products to the sums, before any is scaled or rounded.
    NESTEDFP_DEVICE void add_outliers(float (&sum)[T::kAccumulators], const Work& work) {
        wait_once();  // for x
        const OutlierList& list = args_.outliers;
        const TilePosition position = locate(args_.plan, work.tile);
        const int first_row = (position.row_tile * T::kMulticastCtas + cta_rank_) * T::kRows + row_warpgroup_ * 64;
        int next[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            next[half] = first_outlier(list, first_row + threadIdx.x % 128 / 32 * 16 + half * 8 + threadIdx.x % 32 / 4);
#pragma unroll 1
        while (next[0] >= 0 || next[1] >= 0) {
            const int half = next[0] < 0;
            const int entry = half == 0 ? next[0] : next[1];
            const uint16_t* const column = list.x + list.cols[entry];
            const float delta = list.deltas[entry];
            (half == 0 ? next[0] : next[1]) = next_outlier(list, entry);
#pragma unroll
            for (int unit = 0; unit < kUnits; ++unit) {
                int token = unit * 16 + threadIdx.x % 4 * 2;
                pin(token);  // or the compiler keeps all tokens' addresses from one entry to the next
                if (output_row<T>(args_, position.token_tile, token) < 0) break;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int row = output_row<T>(args_, position.token_tile, token + j / 2 * 8 + j % 2);
                    if (row < 0) continue;
                    float product = __half2float(__ushort_as_half(column[row * list.x_pitch])) * delta;
                    if constexpr (!T::kFp16) {  // the epilogue multiplies by the token's scale
                        if (product != 0) product /= __ldcg(args_.token_scale + row) * (1.0f / kUpperScale);
                    }
                    float* const to = sum + unit * 8 + j / 2 * 4 + j % 2;
                    to[0] += half == 0 ? product : 0.0f;
                    to[2] += half == 0 ? 0.0f : product;
                }
            }
        }
    }

    // K warpgroup 0 adds up the sums of the others.
    NESTEDFP_DEVICE void add_slices(float (&sum)[T::kAccumulators]) {
        constexpr int kThreads = 128 * T::kKWarpgroups;
        constexpr int kSliceBytes = T::kRowWarpgroups * T::kTokens * 256;
        const int is_ready = 1 + T::kRowWarpgroups + row_warpgroup_;  // named barriers: the sums are there
        const int is_free = is_ready + T::kRowWarpgroups;             // and the last tile's have been read
        const uint32_t mine = stages_ + T::kSliceSumOffset + row_warpgroup_ * T::kTokens * 256 + threadIdx.x % 128 * 16;
        if (k_warpgroup_ > 0) {
            if (!is_first_tile_) named_sync(is_free, kThreads);
#pragma unroll
            for (int i = 0; i < T::kTokens / 8; ++i) {
                store_shared_float4(mine + (k_warpgroup_ - 1) * kSliceBytes + i * 2048, group(sum, i));
            }
            named_arrive(is_ready, kThreads);
        } else {
            if (!is_first_tile_) named_arrive(is_free, kThreads);
            named_sync(is_ready, kThreads);
#pragma unroll
            for (int k = 1; k < T::kKWarpgroups; ++k) {
#pragma unroll
                for (int i = 0; i < T::kTokens / 8; ++i) {
                    add_group(sum, i, load_shared_float4(mine + (k - 1) * kSliceBytes + i * 2048));
                }
            }
        }
        is_first_tile_ = false;
    }

    // Where this thread's values go, and what is added to them.
    struct Target {
        int first_row, token_tile;
        float bias[2];           // of rows lane / 4 and lane / 4 + 8 of the warp's 16
        uint32_t matrix_offset;  // in a staging buffer: this lane's row of store_matrices_transposed
        uint32_t piece_offset;   // in a staging buffer: the 16 bytes that this thread stores
        int chunks;              // of experts: those with rows, which come first
    };

    NESTEDFP_DEVICE Target make_target(const Work& work) {
        const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        Target target;
        const TilePosition position = place_of<T>(args_, work);
        target.first_row = first_column<T>(args_, position.row_tile) + cta_rank_ * T::kRows;
        target.first_row += row_warpgroup_ * (is_gated() ? 32 : 64);
        target.token_tile = position.token_tile;
        const int matrix = lane / 8, swizzle = lane % 8;
        target.matrix_offset = (matrix / 2 * 8 + swizzle) * 128 + ((warp * 2 + matrix % 2) ^ swizzle) * 16;
        target.piece_offset = thread / 8 * 128 + ((is_gated() ? thread % 4 * 2 : thread % 8) ^ (thread / 8 % 8)) * 16;
        wait_once();  // the kernel before this one may still read what is overwritten
        target.bias[0] = target.bias[1] = 0;
        if (args_.bias != nullptr) {
            const int row = target.first_row + warp * 16 + lane / 4;
            if (row < args_.n) target.bias[0] = __half2float(args_.bias[row]);
            if (row + 8 < args_.n) target.bias[1] = __half2float(args_.bias[row + 8]);
        }
        if constexpr (T::kIsScaled) {
            if (k_warpgroup_ == 0) {
#pragma unroll
                for (int i = 0; i < kScales; ++i) {
                    const int token = i * 128 + thread;
                    if (token >= T::kTokens) break;
                    store_shared_float(scales() + token * 4, scale_[i]);
                    if constexpr (T::kExperts) store_shared_int(rows() + token * 4, row_[i]);
                }
                named_sync(1 + row_warpgroup_, 128);
            }
        }
        if constexpr (T::kExperts) {
            target.chunks = 0;
#pragma unroll
            for (int token = 0; token < T::kTokens; token += T::kChunkTokens)
                target.chunks += load_shared_int(rows() + token * 4) >= 0;
        }
        return target;
    }

    NESTEDFP_DEVICE void wait_once() {
        if (!has_waited_) pdl_wait();
        has_waited_ = true;
    }

    NESTEDFP_DEVICE uint32_t scales() const { return stages_ + T::kScaleOffset + row_warpgroup_ * T::kTokens * 4; }

    // Of D, for each token of the tile.
    NESTEDFP_DEVICE uint32_t rows() const { return scales() + T::kRowWarpgroups * T::kTokens * 4; }

    NESTEDFP_DEVICE uint32_t next_buffer() {
        const uint32_t buffer = stages_ + T::kStagingOffset + (row_warpgroup_ * 2 + buffer_) * T::kChunkBytes;
        buffer_ ^= 1;
        return buffer;
    }

    // Scales, adds bias, rounds, and turns 16 tokens from rows-by-tokens to tokens-by-rows in shared memory.
    NESTEDFP_DEVICE void stage_unit(const float* sum, int unit, const Target& target, uint32_t to) {
        float v[8];
#pragma unroll
        for (int g = 0; g < 2; ++g) {
            float2 scale = make_float2(1, 1);
            if constexpr (T::kIsScaled)
                scale = load_shared_float2(scales() + (unit * 16 + g * 8 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                v[4 * g + e] = fmaf(sum[4 * g + e], e % 2 == 0 ? scale.x : scale.y, target.bias[e / 2]);
            }
        }
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = half2_bits(v[2 * i], v[2 * i + 1]);
        if (is_gated()) {  // of gate and up; every second piece is then none
            pairs[0] = silu_and_mul(pairs[0], pairs[1]);
            pairs[2] = silu_and_mul(pairs[2], pairs[3]);
        }
        store_matrices_transposed(to + target.matrix_offset, pairs[0], pairs[1], pairs[2], pairs[3]);
    }

    // Stores a staged unit, 128 bytes of a token at a time.
    NESTEDFP_DEVICE void store_unit(int row, const Target& target, uint32_t from) {
        if (row >= 0 && !(is_gated() && threadIdx.x % 8 >= 4))
            store_outputs(args_, load_shared(from + target.piece_offset), row, target.first_row + threadIdx.x % 8 * 8);
    }

    // Of D, what this thread stores of a unit.
    NESTEDFP_DEVICE int row_of(int unit, const Target& target) const {
        const int token = unit * 16 + threadIdx.x % 128 / 8;
        if constexpr (T::kExperts) return load_shared_int(rows() + token * 4);
        return output_row<T>(args_, target.token_tile, token);
    }

    // The last units of a tile may have none.
    NESTEDFP_DEVICE bool has_rows(int unit, const Target& target) const {
        if constexpr (T::kExperts) return unit < target.chunks * kChunkUnits;
        return target.token_tile * T::kTokens + unit * 16 < args_.m;
    }

    // `Units` units whose first is `first_unit` of the tile and whose sums begin at sum[0].
    template <int Units>
    NESTEDFP_DEVICE void store_units(const float* sum, int first_unit, const Target& target) {
#pragma unroll
        for (int chunk = 0; chunk < Units; chunk += kChunkUnits) {
            if (!has_rows(first_unit + chunk, target)) break;
            int row[kChunkUnits];  // read before others go on to the next tile
#pragma unroll
            for (int i = 0; i < kChunkUnits && chunk + i < Units; ++i) row[i] = row_of(first_unit + chunk + i, target);
            const uint32_t buffer = next_buffer();
#pragma unroll
            for (int i = 0; i < kChunkUnits && chunk + i < Units; ++i) {
                stage_unit(sum + 8 * (chunk + i), first_unit + chunk + i, target, buffer + i * 2048);
            }
            // Two buffers: whoever passes has also finished reading the other one.
            named_sync(1 + row_warpgroup_, 128);
#pragma unroll
            for (int i = 0; i < kChunkUnits && chunk + i < Units; ++i) {
                store_unit(row[i], target, buffer + i * 2048);
            }
        }
    }

    // Split-K in a cluster of two: each block gives away the sums of one half and adds what it receives to the other. A
    // split tile is a block's last, so by now the memory of the stages is free to receive.
    NESTEDFP_DEVICE void store_cluster_of_two(float (&sum)[T::kAccumulators], const Target& target) {
        constexpr int kHalf = kUnits / 2;
        const uint32_t received = stages_ + row_warpgroup_ * kHalf * kUnitBytes + threadIdx.x % 128 * 16;
        cluster_sync_relaxed();  // the pipelines of both are empty
        if (k_warpgroup_ == 0) {
            if (rank_ == 1) {
#pragma unroll
                for (int i = 0; i < 8 * kHalf; ++i) {
                    const float keep = sum[8 * kHalf + i];
                    sum[8 * kHalf + i] = sum[i];
                    sum[i] = keep;
                }
            }
            const uint32_t to = peer_address(received, 1 - rank_);
#pragma unroll
            for (int i = 0; i < 2 * kHalf; ++i) store_peer_float4(to + i * 2048, group(sum, 2 * kHalf + i));
        }
        cluster_sync();  // every sum has arrived
        if (k_warpgroup_ > 0) return;
#pragma unroll
        for (int i = 0; i < 2 * kHalf; ++i) add_group(sum, i, load_shared_float4(received + i * 2048));
        store_units<kHalf>(sum, rank_ * kHalf, target);
    }

    // Split-K in any cluster: every block owns a range of units, receives all sums of them and adds them in order of
    // rank.
    NESTEDFP_DEVICE void store_cluster(const float (&sum)[T::kAccumulators], const Target& target) {
        const int slot_units = (kUnits + split_ - 1) / split_;
        const uint32_t from_stride = T::kRowWarpgroups * slot_units * kUnitBytes;
        const uint32_t received = stages_ + row_warpgroup_ * slot_units * kUnitBytes + threadIdx.x % 128 * 16;
        cluster_sync_relaxed();  // the pipelines of the whole cluster are empty
        if (k_warpgroup_ == 0) {
            int owner = 0;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                while (unit_begin(owner + 1) <= u) ++owner;
                const uint32_t to =
                    peer_address(received + rank_ * from_stride + (u - unit_begin(owner)) * kUnitBytes, owner);
                store_peer_float4(to, group(sum, 2 * u));
                store_peer_float4(to + 2048, group(sum, 2 * u + 1));
            }
        }
        cluster_sync();  // every sum has arrived
        if (k_warpgroup_ > 0) return;
        const int begin = unit_begin(rank_), end = unit_begin(rank_ + 1);
#pragma unroll 1
        for (int u = begin; u < end; ++u) {
            if (target.token_tile * T::kTokens + u * 16 >= args_.m) break;
            float total[8] = {};
            for (int from = 0; from < split_; ++from) {
                const uint32_t at = received + from * from_stride + (u - begin) * kUnitBytes;
                const float4 a = load_shared_float4(at), b = load_shared_float4(at + 2048);
                total[0] += a.x, total[1] += a.y, total[2] += a.z, total[3] += a.w;
                total[4] += b.x, total[5] += b.y, total[6] += b.z, total[7] += b.w;
            }
            const uint32_t buffer = next_buffer();
            stage_unit(total, u, target, buffer);
            named_sync(1 + row_warpgroup_, 128);
            store_unit(row_of(u, target), target, buffer);
        }
    }

    const KernelArgs& args_;
    uint32_t stages_;
    int row_warpgroup_, k_warpgroup_, split_, cta_rank_, rank_;
    int buffer_ = 0;
    bool is_first_tile_ = true, has_waited_ = false;
    float scale_[kScales];
    int row_[kScales];  // of experts
};

}  // namespace nestedfp::cuda
