// Per-token activation quantiser: amax, scale and cast in one pass over x, the K permutation of the packed upper plane
// included (row_codes.cuh).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch_rows.h"
#include "cuda/kernels/layout.h"
#include "cuda/kernels/row_codes.cuh"

namespace nestedfp::cuda {
namespace {

template <int Chunks>
__global__ void __launch_bounds__(max_threads(Chunks))
    quantize_kernel(const __half* x, int64_t x_pitch, uint8_t* codes, float* scales, int k, bool is_aligned,
                    int parts_log2) {
    const int chunks = static_cast<int>(upper_pitch(k)) / 8;
    const RowPart part(parts_log2, chunks);
    part.await_others();
    pdl_launch_dependents();  // it reads only weights until this kernel has finished
    pdl_wait();               // which writes x
    const __half* const row = x + part.row * x_pitch;
    uint4 raw[Chunks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        raw[i] = make_uint4(0, 0, 0, 0);
        if (chunk < part.end) {
            if (is_aligned && chunk * 8 + 8 <= k) {
                raw[i] = *reinterpret_cast<const uint4*>(row + chunk * 8);
            } else {
                uint32_t* const words = reinterpret_cast<uint32_t*>(&raw[i]);
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    if (chunk * 8 + e < k)
                        words[e / 2] |= static_cast<uint32_t>(__half_as_ushort(row[chunk * 8 + e])) << (e % 2 * 16);
                }
            }
        }
        largest = max_magnitudes(largest, raw[i]);
    }
    const float scale = row_scale(largest, part);
    if (part.first == 0 && threadIdx.x == 0) scales[part.row] = scale;
    store_row(raw, scale, codes + part.row * upper_pitch(k), part);
}

}  // namespace

int run_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k, bool pdl,
                 cudaStream_t stream) {
    if (k > kMaxQuantizedColumns) return cudaErrorInvalidValue;
    const bool is_aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_pitch % 8 == 0;
    const int chunks = static_cast<int>(upper_pitch(k) / 8), parts_log2 = pdl ? row_parts_log2(m, chunks, true) : 0;
    return choose_chunks(m, part_chunks(chunks, parts_log2), [&](auto per_thread, int threads) {
        const Launch launch = row_launch(m, parts_log2, threads, kExchangeBytes, pdl, stream);
        return launch_kernel(quantize_kernel<per_thread>, launch, static_cast<const __half*>(x), x_pitch, codes, scale,
                             static_cast<int>(k), is_aligned, parts_log2);
    });
}

}  // namespace nestedfp::cuda
