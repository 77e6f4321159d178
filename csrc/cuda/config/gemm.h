// The GEMM as plain data: what to compute (GemmDesc) and how (GemmConfig, from a pure host function).
// D[M,N] = X[M,K] @ W[N,K].T + bias. No torch and no CUDA headers here, so the choice is tested without a GPU. The
// pointers and the launch: cuda/host/launch.h.
#pragma once

#include <cstdint>

#include "cuda/config/divisor.h"

namespace nestedfp::cuda {

enum class Precision : int {
    kFp16 = 0,  // both planes: the exact FP16 weights times FP16 activations
    kFp8 = 1,   // upper plane only: E4M3 weights times E4M3 activations with one scale per token
};

struct GemmDesc {
    Precision precision;
    int64_t m;  // tokens
    int64_t n;  // output features
    int64_t k;  // input features
};

// A compiled kernel. The weights are the M operand of wgmma (64 rows a warpgroup), the tokens its N operand.
struct Tile {
    Precision precision;
    int row_warpgroups;  // each owns 64 output features
    int k_warpgroups;    // each owns every k_warpgroups-th slice of K; they add up through shared memory
    int tokens;
    int blocks_per_sm;
    // 2: two blocks of a cluster compute neighbouring row tiles in lockstep, and each loads half of their activations
    // for both, so that L2 delivers them once.
    int pair;

    constexpr int rows() const { return 64 * row_warpgroups; }
    // Columns of K per pipeline stage: 128 bytes of activations for each of the k_warpgroups.
    constexpr int step() const { return (precision == Precision::kFp16 ? 64 : 128) * k_warpgroups; }
};

struct GemmConfig {
    int tile;        // index into tiles()
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

int tile_count();
const Tile& tile_at(int index);

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
