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

// Semaphores of split-K with a global workspace: zeros in device memory that count the partial sums that are there.
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

}  // namespace nestedfp::cuda
