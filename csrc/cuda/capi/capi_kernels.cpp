// The kernels as C functions, for the tests and benchmarks that choose a config themselves. Loaded with ctypes.
#include <cuda_runtime.h>

#include <exception>

#include "cuda/capi/capi.h"
#include "cuda/host/device_gemm.h"
#include "cuda/host/launch.h"
#include "cuda/host/semaphores.h"
#include "cuda/kernels/chain.h"
#include "cuda/kernels/kernels.h"
#include "cuda/portable/launch.h"

using namespace nestedfp::cuda;

NESTEDFP_API int nestedfp_gemm(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                               const void* x, int64_t x_pitch, const float* token_scale, const uint8_t* upper,
                               const uint8_t* lower, int neutral_lower, const void* bias, void* out, float* workspace,
                               int pdl, void* stream) {
    const char* message = nullptr;
    return run_gemm(make_desc(precision, m, n, k), make_config(config),
                    {x, x_pitch, token_scale, upper, lower, neutral_lower != 0, bias, out, workspace,
                     stream_semaphores(static_cast<CUstream_st*>(stream)), pdl != 0},
                    num_sms, static_cast<CUstream_st*>(stream), &message);
}

// The arguments from source to workspace are ChainArgs'. config null: the chain without its GEMM.
NESTEDFP_API int nestedfp_time_chain(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                     const void* source, void* x, uint8_t* codes, float* token_scale,
                                     const uint8_t* const* upper, const uint8_t* const* lower, int weights, void* out,
                                     float* workspace, int links, int replays, void* stream, float* us) {
    const char* message = nullptr;
    const GemmConfig wanted = config == nullptr ? GemmConfig{} : make_config(config);
    return time_chain(make_desc(precision, m, n, k), config == nullptr ? nullptr : &wanted,
                      {source, x, codes, token_scale, upper, lower, weights, out, workspace}, num_sms, links, replays,
                      static_cast<CUstream_st*>(stream), us, &message);
}

NESTEDFP_API int nestedfp_prepare() { return prepare_device(); }

NESTEDFP_API int nestedfp_prepare_portable(int has_fp8) { return prepare_portable(has_fp8 != 0); }

// workspace: as many bytes as the plan of this tile and split needs.
NESTEDFP_API int nestedfp_portable_gemm(int operands, int64_t m, int64_t n, int64_t k, int tile, int split,
                                        const void* x, int64_t x_pitch, const float* token_scale, const uint8_t* upper,
                                        const uint8_t* lower, const void* bias, void* out, float* workspace,
                                        void* stream) {
    const char* message = nullptr;
    const auto kind = static_cast<PortableOperands>(operands);
    const auto precision = kind == PortableOperands::kFp8 ? nestedfp::Precision::kFp8 : nestedfp::Precision::kFp16;
    return run_portable({precision, m, n, k}, kind, cut_portable(kind, m, n, k, tile, split),
                        {x, x_pitch, token_scale, upper, lower, false, bias, out, workspace,
                         stream_semaphores(static_cast<CUstream_st*>(stream)), false},
                        static_cast<CUstream_st*>(stream), &message);
}

NESTEDFP_API int nestedfp_split(const void* weight, uint8_t* upper, uint8_t* lower, int64_t count, void* counts,
                                void* stream) {
    return run_split(static_cast<const uint16_t*>(weight), upper, lower, count,
                     static_cast<unsigned long long*>(counts), static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int nestedfp_pack(const uint8_t* upper, const uint8_t* lower, uint8_t* packed_upper, uint8_t* packed_lower,
                               int64_t n, int64_t k, void* stream) {
    return run_pack(upper, lower, packed_upper, packed_lower, n, k, static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int nestedfp_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k,
                                   void* stream) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    bool pdl = false;
    try {
        pdl = gpu_traits(device).has_pdl();
    } catch (const std::exception&) {  // no C function throws
        return cudaErrorInvalidValue;
    }
    return run_quantize(x, x_pitch, codes, scale, m, k, pdl, static_cast<CUstream_st*>(stream));
}
