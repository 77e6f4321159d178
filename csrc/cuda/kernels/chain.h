// Times one GEMM in the place that it has in a model: after a kernel that writes its input, before the next layer's.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

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
