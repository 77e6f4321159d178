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
    int64_t m;  // tokens
    int64_t n;  // output features
    int64_t k;  // input features
};

struct GemmConfig {
    int tile;        // index into kTiles
    int split;       // parts into which K of a tile is cut; kEvenShares: as many steps for every block (through_memory)
    bool tail_only;  // split only the tiles that do not fill a whole wave
    // Where the sums of the parts meet. False: the parts are the thread blocks of one cluster and add up through
    // distributed shared memory: quick, but clusters must fit the chip. True: in device memory, any number of parts on
    // any blocks; one of them adds them up (kLastCollects in tile_traits.cuh).
    bool through_memory;
};

inline constexpr int kEvenShares = 0;

// How a problem is cut into work for a grid. Derived from the structs above. Where blocks work in pairs, a pair
// counts as one block here, and its tiles as one.
struct GemmPlan {
    int pair;             // of the tile
    int blocks;           // thread blocks, a multiple of the cluster's size
    int row_tiles;        //
    int token_tiles;      //
    int tiles;            // row_tiles * token_tiles
    Divisor group;        // token tiles that are walked together, row tile by row tile (schedule.cuh)
    Divisor last_group;   // the same of the last group, which may be smaller
    Divisor group_tiles;  // row_tiles * group
    int whole_tiles;      // tiles [0, whole_tiles) are computed by one block each, the rest in parts
    Divisor cluster;      // parts that share a cluster; 1 without one
    Divisor steps;        // pipeline stages along K
    // Parts that meet in device memory. The tiles that are not computed whole stand in `columns` columns, those of one
    // row next to each other; all steps of a column, row after row, are dealt out in `shares` equal runs, a block each.
    Divisor shares;        // 0: nothing meets in device memory
    Divisor columns;       // tiles that share their weights, walked in lockstep
    Divisor column_steps;  // of a whole column
};

// False, with the reason, if the config cannot compute the problem.
bool is_valid(const GemmDesc& desc, const GemmConfig& config, int num_sms, const char** reason);

// Tiles that may be split through memory, times row warpgroups.
inline constexpr int kCounters = 2048;

// Scratch that a split through memory needs; 0 for any other config. Needs is_valid.
int64_t partial_sum_bytes(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// Needs is_valid.
GemmPlan make_plan(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// Microseconds that the cost model predicts on an H100. Only for comparing configs of one problem.
double predict_us(const GemmDesc& desc, const GemmConfig& config, int num_sms);

// The best config by what was timed on this card (gemm_timings.h) if desc's N and K were; else the measured one where
// the table has N, K and an M close above, else the model's best. Remembered by thread. Without counters
// (cuda/host/semaphores.h) no config may split through memory.
GemmConfig choose_config(const GemmDesc& desc, int num_sms, bool has_counters);

}  // namespace nestedfp::cuda
