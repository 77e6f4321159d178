// The GEMM as plain data: what to compute (GemmDesc) and how (GemmConfig, from a pure host function).
// D[M,N] = X[M,K] @ W[N,K].T + bias. No torch and no CUDA headers here, so the choice is tested without a GPU. The
// pointers and the launch: cuda/host/launch.h.
#pragma once

#include <cstdint>

#include "cuda/config/divisor.h"
#include "cuda/config/tiles.h"

namespace nestedfp::cuda {

struct GemmDesc {
    Precision precision;
    // Tokens.
    int64_t m;
    // Output features.
    int64_t n;
    // Input features.
    int64_t k;
};

// The few weights beyond 1.75, as a GEMM takes them: weight [rows[i], cols[i]] is more by deltas[i] than the planes
// say; rows ascend. The sums of listed rows get x * delta in FP32 before they are rounded.
struct OutlierList {
    // [M, K] FP16 whatever the precision, rows x_pitch elements apart.
    const uint16_t* x;
    int64_t x_pitch;
    const int32_t* rows;
    const int32_t* cols;
    const float* deltas;
    // 0: none.
    int count;
};

// The split of a config that is Stream-K: every thread block computes as many steps as any other, wherever the borders
// of tiles lie (stream_k.h).
inline constexpr int kStreamK = 0;

// A tile, and how K is split. Split-K has two forms:
//   in a cluster                    The parts of a tile are the thread blocks of one cluster and are reduced through
//                                   distributed shared memory: quick, but clusters must fit the chip.
//   with a global workspace         The partial sums go to device memory; any number of parts on any blocks. One of
//                                   these blocks reduces them; semaphores tell it when (cuda/host/launch.h).
//                                   Stream-K always works this way.
struct GemmConfig {
    // Index into kTiles.
    int tile;
    // Parts into which K of a tile is cut; 1: none; kStreamK.
    int split;
    // Split only the tiles that do not fill a whole wave.
    bool tail_only;
    // Which of the two forms.
    bool global_workspace;
};

// How a problem is cut into work for a grid. Derived from the structs above. Where tiles are multicast (Tile), a
// cluster of two thread blocks counts as one block here, and its two tiles as one.
struct GemmPlan {
    // Of the tile.
    int multicast_ctas;
    // Thread blocks, a multiple of the split-K cluster's size, and the first of them in the grid.
    int blocks;
    int first_block;
    int row_tiles;
    int token_tiles;
    // row_tiles * token_tiles.
    int tiles;
    // CTA rasterisation (schedule.cuh): token tiles of a group, of the last group, which may be smaller, and all tiles
    // of a group, row_tiles * raster_group.
    Divisor raster_group;
    Divisor last_raster_group;
    Divisor raster_group_tiles;
    // Tiles [0, whole_tiles) are computed by one block each, the rest in parts.
    int whole_tiles;
    // Parts of split-K in a cluster; 1 without one.
    Divisor cluster;
    // Pipeline stages along K.
    Divisor steps;
    // Split-K with a global workspace, Stream-K included. The tiles that are not computed whole stand in `columns`
    // columns, those of one row next to each other; all steps of a column, row after row, are dealt out in work_units
    // equal runs, a block each. work_units 0: no workspace.
    Divisor work_units;
    // Tiles that share their weights, computed in lockstep.
    Divisor columns;
    // Steps of a whole column.
    Divisor column_steps;
};

// False, with the reason, if the config cannot compute the problem.
bool is_valid(const GemmDesc& desc, const GemmConfig& config, int num_sms, const char** reason);

// Limits of split-K: parts in a cluster, parts with a global workspace, bytes of that workspace, and semaphores, which
// bound the split tiles times row warpgroups.
inline constexpr int kMaxClusterParts = 4;
inline constexpr int kMaxWorkspaceParts = 8;
inline constexpr int64_t kMaxWorkspaceBytes = int64_t{64} << 20;
inline constexpr int kSemaphores = 2048;

// Bytes of workspace that a config needs; 0 without a global workspace. Needs is_valid.
int64_t workspace_bytes(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// Needs is_valid.
GemmPlan make_plan(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// Microseconds that the cost model predicts on an H100. Only for comparing configs of one problem.
double predict_us(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// The best config by what was timed on this card (gemm_timings.h) if desc's N and K were, else by the model. Remembered
// by thread.
GemmConfig choose_config(const GemmDesc& desc, int num_sms);

}  // namespace nestedfp::cuda
