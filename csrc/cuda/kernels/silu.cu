// silu(gate) * up of a token, written as FP16 or as E4M3 codes with a scale. Codes are made from the FP16 result, so
// they are those that quantize.cu would make of it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch_rows.h"
#include "cuda/kernels/layout.h"
#include "cuda/kernels/row_codes.cuh"
#include "cuda/kernels/silu_and_mul.cuh"

namespace nestedfp::cuda {
namespace {

// x: [M, 2 * K], gate then up.
template <int Chunks, CarrierRows Kind>
__global__ void __launch_bounds__(max_threads(Chunks))
    silu_kernel(const uint4* x, void* carrier, float* scales, int chunks, int exact, int parts_log2) {
    const RowPart part(parts_log2, chunks);
    if constexpr (Kind != CarrierRows::kExact) part.await_others();
    pdl_launch_dependents();  // it reads only weights until this kernel has finished
    pdl_wait();               // which writes x
    const uint4* const gates = x + static_cast<int64_t>(part.row) * 2 * chunks;
    uint4 raw[Chunks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        raw[i] = make_uint4(0, 0, 0, 0);
        if (chunk < part.end) {
            const uint4 gate = gates[chunk], up = gates[chunks + chunk];
            raw[i] = make_uint4(silu_and_mul(gate.x, up.x), silu_and_mul(gate.y, up.y), silu_and_mul(gate.z, up.z),
                                silu_and_mul(gate.w, up.w));
        }
        if constexpr (Kind != CarrierRows::kExact) largest = max_magnitudes(largest, raw[i]);
    }
    store_carried<Kind>(raw, largest, carrier, scales, chunks, exact, part);
}

}  // namespace

int run_silu_and_mul(const void* x, void* carrier, float* scales, int64_t m, int64_t k, int64_t exact, bool pdl,
                     cudaStream_t stream) {
    if (k % kCarrierColumns != 0 || k > kMaxQuantizedColumns) return cudaErrorInvalidValue;
    const CarrierRows kind = carrier_rows(m, exact);
    const bool exchanges = kind != CarrierRows::kExact;
    const int chunks = static_cast<int>(k / 8);
    const int parts_log2 = pdl || !exchanges ? row_parts_log2(m, chunks, exchanges) : 0;
    return choose_chunks(m, part_chunks(chunks, parts_log2), [&](auto per_thread, int threads) {
        const auto kernel = kind == CarrierRows::kExact  ? silu_kernel<per_thread, CarrierRows::kExact>
                            : kind == CarrierRows::kFast ? silu_kernel<per_thread, CarrierRows::kFast>
                                                         : silu_kernel<per_thread, CarrierRows::kBoth>;
        const Launch launch = row_launch(m, parts_log2, threads, exchanges ? kExchangeBytes : 0, pdl, stream);
        return launch_kernel(kernel, launch, static_cast<const uint4*>(x), carrier, scales, chunks,
                             static_cast<int>(exact), parts_log2);
    });
}

}  // namespace nestedfp::cuda
