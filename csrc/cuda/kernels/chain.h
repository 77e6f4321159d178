// Times one GEMM in the place that it has in a model: after a kernel that writes its input, before the next layer's.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

struct ChainArgs {
    const void* source;           // [M, K] FP16
    void* x;                      // [M, K] FP16, scratch
    uint8_t* codes;               // [M, upper_pitch(K)], FP8 only, scratch
    float* token_scale;           // [M], FP8 only, scratch
    const uint8_t* const* upper;  // packed planes of `weights` layers, which the links of the chain use in turn
    const uint8_t* const* lower;  //
    int weights;                  //
    void* out;                    // [M, N] FP16, scratch
    float* partial_sums;          // as GemmArgs
};

// A link of the chain is a kernel that writes x as a norm or an activation does, in FP8 the quantiser, and the GEMM,
// each launched early behind the one before as in the product; config null: a link without its GEMM, to be subtracted.
// Captures `links` of them as a CUDA graph, replays it once to warm up and `replays` times for us[replays],
// microseconds per link. Needs is_valid, and a stream that can be captured; waits for the stream. Returns a
// cudaError_t; on an error *message says what was wrong.
int time_chain(const GemmDesc& desc, const GemmConfig* config, const ChainArgs& args, int num_sms, int links,
               int replays, CUstream_st* stream, float* us, const char** message);

}  // namespace nestedfp::cuda
