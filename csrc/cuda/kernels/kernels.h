// The CUDA kernels beside the GEMM as raw pointers, sizes and a stream: no torch, no allocation, no synchronisation.
// Each returns a cudaError_t.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace nestedfp::cuda {

// Splits FP16 words into canonical planes, as csrc/format.h does. counts[2] (zeroed by the caller) gains the finite
// weights beyond 1.75 and the infinities and NaNs.
int run_split(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count, unsigned long long* counts,
              CUstream_st* stream);

// Canonical planes [N, K] -> packed planes (layout.h). A weight may be used by the GEMM as soon as this is enqueued on
// the same stream.
int run_pack(const uint8_t* upper, const uint8_t* lower, uint8_t* packed_upper, uint8_t* packed_lower, int64_t n,
             int64_t k, CUstream_st* stream);

// Packed planes -> the exact weights `out` [rows, K], FP16, from first_row on, which is a multiple of 64.
int run_join(const uint8_t* packed_upper, const uint8_t* packed_lower, uint16_t* out, int64_t n, int64_t k,
             int64_t first_row, int64_t rows, CUstream_st* stream);

// The longest row of activations that run_quantize takes.
inline constexpr int64_t kMaxQuantizedColumns = 81920;

// Rounds each token of x [M, K], FP16, to E4M3 with its own scale (row_codes.cuh), in the K order of
// the packed upper plane: codes [M, upper_pitch(K)], padding zero; scale [M]. pdl: by programmatic dependent launch.
int run_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k, bool pdl,
                 CUstream_st* stream);

// The two kernels that a model has before a linear layer, with the quantiser in them. They write `carrier`, [M, K] FP16
// in memory: the result of the first `exact` rows as it is, then what run_quantize would make of that of the others,
// codes [M - exact, K] without a gap, and their scales in scales [M].
// K is a multiple of kCarrierColumns, so that rows of codes have no padding; tensors are contiguous and aligned to 16
// bytes.
inline constexpr int64_t kMaxNormColumns = 16384;

struct RowNormArgs {
    const void* x;         // [M, K] FP16
    const void* residual;  // [M, K] FP16, or null: nothing is added
    void* sum;             // [M, K] FP16: x + residual, may be residual itself; null without one
    const void* weight;    // [K] FP16
    void* carrier;
    float* scales;
    float epsilon;
};
int run_rms_norm(const RowNormArgs& args, int64_t m, int64_t k, int64_t exact, bool pdl, CUstream_st* stream);

// x: [M, 2 * K] FP16, gate then up; K at most kMaxQuantizedColumns.
int run_silu_and_mul(const void* x, void* carrier, float* scales, int64_t m, int64_t k, int64_t exact, bool pdl,
                     CUstream_st* stream);

}  // namespace nestedfp::cuda
