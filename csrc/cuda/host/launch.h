// Runs the GEMM that cuda/config chose: with which pointers (GemmArgs), on which stream.
#pragma once

#include <cstdint>

#include "cuda/config/gemm.h"
#include "cuda/config/mixed.h"

struct CUstream_st;

namespace nestedfp::cuda {

struct GemmArgs {
    // [M, K] FP16, rows x_pitch elements apart; FP8: [M, upper_pitch(K)] from quantize.
    const void* x;
    int64_t x_pitch;
    // [M], FP8 only.
    const float* token_scale;
    // Packed (cuda/kernels/layout.h); lower FP16 only.
    const uint8_t* upper;
    const uint8_t* lower;
    // FP16 only: compute with the FP8 weights (W8A16).
    bool neutral_lower;
    // [N] FP16 or null.
    const void* bias;
    // [M, N] FP16, contiguous.
    void* out;
    // workspace_bytes() of scratch, or null if that is 0.
    float* workspace;
    // kSemaphores zeros, left as zeros; not shared by GEMMs that may run at the same time.
    int* semaphores;
    // Programmatic dependent launch: begin to load weights while the kernel before it in the stream still runs.
    bool pdl = true;
    OutlierList outliers{};
    // The mixed GEMM only: [fast rows, upper_pitch(K)] from quantize. x is then of the exact rows, the first of out,
    // and token_scale of the fast ones.
    const uint8_t* codes = nullptr;
};

// Semaphores: zeros in device memory. They count the partial sums of split-K with a global workspace that are there, or
// the tiles of experts that blocks have taken.
// Each stream has a set, allocated once per device; GEMMs of one stream run one after another and use the same.
// prepare_semaphores allocates the current device's, and nothing the second time. Returns a cudaError_t.
int prepare_semaphores();

// kSemaphores zeros of the current device for GEMMs on `stream`; null before prepare_semaphores, or when more streams
// ask than there are sets. A captured graph keeps those of the stream it was captured on, as it keeps cuBLAS's
// workspace: graphs captured on one stream must not be replayed at the same time.
int* stream_semaphores(CUstream_st* stream);

// Loads every tile onto the current device and allocates its semaphores, so that no later launch, perhaps under graph
// capture, has to. Returns a cudaError_t.
int prepare_device();

// Launches on `stream` of the current device; never synchronises, allocates nothing. Returns a cudaError_t; on an error
// *message says what was wrong.
int run_gemm(const GemmDesc& desc, const GemmConfig& config, const GemmArgs& args, int num_sms, CUstream_st* stream,
             const char** message);
int run_mixed(const MixedDesc& desc, const MixedConfig& config, const GemmArgs& args, int num_sms, CUstream_st* stream,
              const char** message);

// The products of experts with the rows that chose them.
struct ExpertsDesc {
    int64_t experts, n, k;
    // Rows of x, those that do not fill up tiles, and token tiles at most.
    int64_t rows, valid, token_tiles;
    // The tokens of a compiled tile (experts_tiles.inc).
    int64_t tile_rows;
    // The weights are gate, then up, and out is silu(gate) * up as x of the next product: [rows, N / 2], N / 2 a
    // multiple of 64.
    bool is_gated;
};

struct ExpertsArgs {
    // [rows, K] FP16, each 64 of K in the order in which consumer.cuh reads planes whose K is in order.
    const void* x;
    // [rows], multiplied to their results; null: nothing is.
    const float* scales;
    // [experts, N, K], in order of K. lower: residuals plus 127.
    const uint8_t* upper;
    const uint8_t* lower;
    // [valid, N] FP16, where not gated.
    void* out;
    // As ExpertRows has them (gemm/kernel_args.h). Tiles and rows are read while the kernel before this one may still
    // run: it must not write them.
    const int* row_ids;
    const int* tile_experts;
    const int* padded_rows;
    // As of GemmArgs; two count tiles.
    int* semaphores;
};

// As run_gemm.
int run_experts(const ExpertsDesc& desc, const ExpertsArgs& args, int num_sms, CUstream_st* stream,
                const char** message);

// A GEMM timed in the place that it has in a model: after a kernel that writes its input, before the next layer's.
struct ChainArgs {
    // [M, K] FP16.
    const void* source;
    // [M, K] FP16, scratch.
    void* x;
    // FP8 only, scratch: [M, upper_pitch(K)] and [M].
    uint8_t* codes;
    float* token_scale;
    // Packed planes of `weights` layers, which the links of the chain use in turn.
    const uint8_t* const* upper;
    const uint8_t* const* lower;
    int weights;
    // [M, N] FP16, scratch.
    void* out;
    // As GemmArgs.
    float* workspace;
};

// A link of the chain is a kernel that writes x as a norm or an activation does, in FP8 the quantiser, and the GEMM,
// each by programmatic dependent launch as in the product; config null: a link without its GEMM, to be subtracted.
// Captures `links` of them as a CUDA graph, replays it once to warm up and `replays` times for us[replays],
// microseconds per link. Needs is_valid, and a stream that can be captured; waits for the stream. Returns a
// cudaError_t; on an error *message says what was wrong.
int time_chain(const GemmDesc& desc, const GemmConfig* config, const ChainArgs& args, int num_sms, int links,
               int replays, CUstream_st* stream, float* us, const char** message);

}  // namespace nestedfp::cuda
