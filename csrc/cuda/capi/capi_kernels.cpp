// The kernels as C functions, for the tests and benchmarks that choose a config themselves. Loaded with ctypes.
#include <cuda_runtime.h>

#include "cuda/capi/capi.h"
#include "cuda/host/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/portable/launch.h"

using namespace nestedfp::cuda;
using nestedfp::Precision;

NESTEDFP_API int nestedfp_gemm(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                               const GemmConfig* config, const void* x, int64_t x_pitch, const float* token_scale,
                               const uint8_t* upper, const uint8_t* lower, int neutral_lower, const void* bias,
                               void* out, float* workspace, int pdl, void* stream) {
    const char* message = nullptr;
    return run_gemm({precision, m, n, k}, *config,
                    {x, x_pitch, token_scale, upper, lower, neutral_lower != 0, bias, out, workspace,
                     stream_semaphores(static_cast<CUstream_st*>(stream)), pdl != 0},
                    num_sms, static_cast<CUstream_st*>(stream), &message);
}

// The arguments from source to workspace are ChainArgs'. config null: the chain without its GEMM.
NESTEDFP_API int nestedfp_time_chain(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                     const GemmConfig* config, const void* source, void* x, uint8_t* codes,
                                     float* token_scale, const uint8_t* const* upper, const uint8_t* const* lower,
                                     int weights, void* out, float* workspace, int links, int replays, void* stream,
                                     float* us) {
    const char* message = nullptr;
    return time_chain({precision, m, n, k}, config,
                      {source, x, codes, token_scale, upper, lower, weights, out, workspace}, num_sms, links, replays,
                      static_cast<CUstream_st*>(stream), us, &message);
}

NESTEDFP_API int nestedfp_prepare() { return prepare_device(); }

NESTEDFP_API int nestedfp_prepare_portable(int has_fp8) { return prepare_portable(has_fp8 != 0); }

// workspace: as many bytes as the plan of this tile and split needs.
NESTEDFP_API int nestedfp_portable_gemm(PortableOperands operands, int64_t m, int64_t n, int64_t k, int tile, int split,
                                        const void* x, int64_t x_pitch, const float* token_scale, const uint8_t* upper,
                                        const uint8_t* lower, const void* bias, void* out, float* workspace,
                                        void* stream) {
    const char* message = nullptr;
    const auto precision = operands == PortableOperands::kFp8 ? Precision::kFp8 : Precision::kFp16;
    return run_portable({precision, m, n, k}, operands, cut_portable(operands, m, n, k, tile, split),
                        {x, x_pitch, token_scale, upper, lower, false, bias, out, workspace,
                         stream_semaphores(static_cast<CUstream_st*>(stream)), false},
                        static_cast<CUstream_st*>(stream), &message);
}

NESTEDFP_API int nestedfp_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k,
                                   int pdl, void* stream) {
    return run_quantize(x, x_pitch, codes, scale, m, k, pdl != 0, static_cast<CUstream_st*>(stream));
}
