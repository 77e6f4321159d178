// The GEMM as plain data: what to compute (GemmDesc), how (GemmConfig, from a pure host function), and with which
// pointers (GemmArgs). D[M,N] = X[M,K] @ W[N,K].T + bias. No torch and no CUDA headers here, so the choice is tested
// without a GPU.
#pragma once

#include <cstdint>

#include "divisor.h"

struct CUstream_st;

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

// How a problem is cut into work for a grid. Derived from the three structs above. Where blocks work in pairs, a pair
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

struct GemmArgs {
    const void* x;             // [M, K] FP16, rows x_pitch elements apart; FP8: [M, upper_pitch(K)] from quantize
    int64_t x_pitch;           //
    const float* token_scale;  // [M], FP8 only
    const uint8_t* upper;      // packed (layout.h)
    const uint8_t* lower;      // packed, FP16 only
    bool neutral_lower;        // FP16 only: compute with the FP8 weights (W8A16)
    const void* bias;          // [N] FP16 or null
    void* out;                 // [M, N] FP16, contiguous
    float* partial_sums;       // partial_sum_bytes() of scratch, or null if that is 0
    int* counters;             // kCounters zeros, left as zeros; not shared by GEMMs that may run at the same time
    bool early_start = true;   // begin to load weights while the kernel before it in the stream still runs
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
// the table has N, K and an M close above, else the model's best. Remembered by thread. Without counters (counters.h)
// no config may split through memory.
GemmConfig choose_config(const GemmDesc& desc, int num_sms, bool has_counters);

// Loads every tile onto the current device and allocates its counters, so that no later launch, perhaps under graph
// capture, has to. Returns a cudaError_t.
int prepare_device();

// Launches on `stream` of the current device; never synchronises, allocates nothing. Returns a cudaError_t; on an error
// *message says what was wrong.
int run_gemm(const GemmDesc& desc, const GemmConfig& config, const GemmArgs& args, int num_sms, CUstream_st* stream,
             const char** message);

}  // namespace nestedfp::cuda
