// The GEMM as plain data: what to compute (GemmDesc), how (GemmConfig, from a pure host function), and with which
// pointers (GemmArgs). D[M,N] = X[M,K] @ W[N,K].T + bias. No torch and no CUDA headers here, so the choice is tested
// without a GPU.
#pragma once

#include <cstdint>

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

    constexpr int rows() const { return 64 * row_warpgroups; }
    // Columns of K per pipeline stage: 128 bytes of activations for each of the k_warpgroups.
    constexpr int step() const { return (precision == Precision::kFp16 ? 64 : 128) * k_warpgroups; }
};

struct GemmConfig {
    int tile;        // index into tiles()
    int split;       // parts into which K of a tile is cut
    bool tail_only;  // split only the tiles that do not fill a whole wave
    // Where the sums of the parts meet. False: the parts are the thread blocks of one cluster and add up through
    // distributed shared memory: quick, but clusters must fit the chip. True: in device memory, any number of parts on
    // any blocks; whoever comes last adds them up.
    bool through_memory;
};

// How a problem is cut into work for a grid. Derived from the three structs above.
struct GemmPlan {
    int blocks;       // thread blocks, a multiple of the cluster's size
    int row_tiles;    //
    int token_tiles;  //
    int group;        // token tiles that are walked together, row tile by row tile (schedule.cuh)
    int tiles;        // row_tiles * token_tiles
    int whole_tiles;  // tiles [0, whole_tiles) are computed by one block each, the rest in parts
    int cluster;      // parts that share a cluster; 1 without one
    int parts;        // parts that meet in device memory; 1 without any
    int steps;        // pipeline stages along K
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

// The measured best config where the table has the problem's N, K and neighbourhood of M, else the model's best.
// Without counters (counters.h) no config may split through memory.
GemmConfig choose_config(const GemmDesc& desc, int num_sms, bool has_counters);

// Loads every tile onto the current device and allocates its counters, so that no later launch, perhaps under graph
// capture, has to. Returns a cudaError_t.
int prepare_device();

// Launches on `stream` of the current device; never synchronises, allocates nothing. Returns a cudaError_t; on an error
// *message says what was wrong.
int run_gemm(const GemmDesc& desc, const GemmConfig& config, const GemmArgs& args, int num_sms, CUstream_st* stream,
             const char** message);

}  // namespace nestedfp::cuda
