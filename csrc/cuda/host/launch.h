// Runs the GEMM that cuda/config chose: with which pointers (GemmArgs), on which stream.
#pragma once

#include <cstdint>

#include "cuda/config/gemm.h"

struct CUstream_st;

namespace nestedfp::cuda {

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

// Loads every tile onto the current device and allocates its counters, so that no later launch, perhaps under graph
// capture, has to. Returns a cudaError_t.
int prepare_device();

// Launches on `stream` of the current device; never synchronises, allocates nothing. Returns a cudaError_t; on an error
// *message says what was wrong.
int run_gemm(const GemmDesc& desc, const GemmConfig& config, const GemmArgs& args, int num_sms, CUstream_st* stream,
             const char** message);

}  // namespace nestedfp::cuda
