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

// Canonical planes [N, K] -> packed planes (layout.h), and back. A weight may be used by the GEMM as soon as run_pack
// is enqueued on the same stream.
int run_pack(const uint8_t* upper, const uint8_t* lower, uint8_t* packed_upper, uint8_t* packed_lower, int64_t n,
             int64_t k, CUstream_st* stream);
int run_unpack(const uint8_t* packed_upper, const uint8_t* packed_lower, uint8_t* upper, uint8_t* lower, int64_t n,
               int64_t k, CUstream_st* stream);

// The longest row of activations that run_quantize takes.
inline constexpr int64_t kMaxQuantizedColumns = 81920;

// Rounds each token of x [M, K], FP16, to E4M3 with its own scale (nestedfp/kernels/activations.py), in the K order of
// the packed upper plane: codes [M, upper_pitch(K)], padding zero; scale [M]. pdl: by programmatic dependent launch.
int run_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k, bool pdl,
                 CUstream_st* stream);

// Lists the first `count` finite weights beyond 1.75 of [N, K] in row-major order. row_scratch: [N].
int run_list_outliers(const uint16_t* weight, int64_t n, int64_t k, int64_t count, int32_t* row_scratch, int32_t* rows,
                      int32_t* cols, float* deltas, CUstream_st* stream);

// out[m, row] += sum of x[m, col] * delta over the listed weights of each row. Rows ascend. out [M, N], x [M, K]: FP16.
int run_outliers(const void* x, int64_t x_pitch, const int32_t* rows, const int32_t* cols, const float* deltas,
                 int64_t count, void* out, int64_t m, int64_t n, CUstream_st* stream);

}  // namespace nestedfp::cuda
