// RMSNorm of one token per block, with or without the addition of a residual, written as FP16 or as E4M3 codes with a
// scale. The arithmetic is that of vLLM's rms_norm and fused_add_rms_norm as it defines them: the sum and the norm in
// FP32, the result rounded to FP16 before and after the multiplication by the weight. Codes are made from that FP16
// result, so they are those that quantize.cu would make of it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch_rows.h"
#include "cuda/kernels/layout.h"
#include "cuda/kernels/row_codes.cuh"
#include "cuda/kernels/row_part.cuh"

namespace nestedfp::cuda {
namespace {

// A thread holds a chunk's 8 columns in FP32, twice the registers that the quantiser needs for them.
constexpr int norm_threads(int chunks) { return chunks > 2 ? 512 : 1024; }
static_assert(kMaxNormColumns == 2 * norm_threads(2) * 8 && kMaxNormColumns == 4 * norm_threads(4) * 8);

// The sum over the row, the same in all threads, added in the same order every time.
NESTEDFP_DEVICE float row_sum(float sum, const RowPart& part) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    const int count = part.exchange(kSumSlots, __float_as_uint(sum));
    sum = 0;
    for (int i = threadIdx.x % 32; i < count; i += 32) sum += __uint_as_float(part.exchanged(kSumSlots, i));
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    return sum;
}

template <int Chunks, bool Adds, CarrierRows Kind>
__global__ void __launch_bounds__(norm_threads(Chunks)) norm_kernel(RowNormArgs args, int k, int exact) {
    const int chunks = k / 8;
    const RowPart part(0, chunks);  // rows are short: to exchange something costs more than more blocks save
    pdl_launch_dependents();        // it reads only weights until this kernel has finished
    pdl_wait();                     // which writes x, and may have written the weight
    const int64_t first = static_cast<int64_t>(part.row) * chunks;
    // All loads before the first store, which might be to the same memory.
    uint4 x[Chunks], residual[Chunks], weight[Chunks];
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        x[i] = residual[i] = weight[i] = make_uint4(0, 0, 0, 0);
        if (chunk < part.end) {
            weight[i] = static_cast<const uint4*>(args.weight)[chunk];
            x[i] = static_cast<const uint4*>(args.x)[first + chunk];
            if constexpr (Adds) residual[i] = static_cast<const uint4*>(args.residual)[first + chunk];
        }
    }
    float2 values[Chunks][4];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = part.chunk(i);
        const uint32_t x_words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        const uint32_t residual_words[4] = {residual[i].x, residual[i].y, residual[i].z, residual[i].w};
        uint32_t sum_words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[i][e] = __half22float2(halves_of(x_words[e]));
            if constexpr (Adds) {
                const float2 more = __half22float2(halves_of(residual_words[e]));
                values[i][e] = make_float2(values[i][e].x + more.x, values[i][e].y + more.y);
                sum_words[e] = word_of(__float22half2_rn(values[i][e]));
            }
            squares += values[i][e].x * values[i][e].x + values[i][e].y * values[i][e].y;
        }
        if constexpr (Adds) {
            if (chunk < part.end) {
                static_cast<uint4*>(args.sum)[first + chunk] =
                    make_uint4(sum_words[0], sum_words[1], sum_words[2], sum_words[3]);
            }
        }
    }
    const float norm = rsqrtf(__fdiv_rn(row_sum(squares, part), static_cast<float>(k)) + args.epsilon);
    uint4 raw[Chunks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const uint32_t weight_words[4] = {weight[i].x, weight[i].y, weight[i].z, weight[i].w};
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const __half2 normed = __floats2half2_rn(values[i][e].x * norm, values[i][e].y * norm);
            words[e] = word_of(__hmul2_rn(normed, halves_of(weight_words[e])));
        }
        raw[i] = make_uint4(words[0], words[1], words[2], words[3]);
        if constexpr (Kind != CarrierRows::kExact) largest = max_magnitudes(largest, raw[i]);
    }
    store_carried<Kind>(raw, largest, args.carrier, args.scales, chunks, exact, part);
}

template <bool Adds, CarrierRows Kind>
cudaError_t launch(const RowNormArgs& args, int64_t m, int64_t k, int64_t exact, bool pdl, cudaStream_t stream) {
    const int chunks = static_cast<int>(k / 8);
    const auto with = [&](auto per_thread) {
        const auto threads = static_cast<int>(round_up((chunks + per_thread - 1) / per_thread, 32));
        const Launch launch = row_launch(m, 0, threads, 2 * kExchangeBytes, pdl, stream);
        return launch_kernel(norm_kernel<per_thread, Adds, Kind>, launch, args, static_cast<int>(k),
                             static_cast<int>(exact));
    };
    // As choose_chunks has it, for the rows that a norm has.
    return m > 256 ? with(std::integral_constant<int, 4>{}) : with(std::integral_constant<int, 2>{});
}

template <bool Adds>
cudaError_t launch_kind(const RowNormArgs& args, int64_t m, int64_t k, int64_t exact, bool pdl, cudaStream_t stream) {
    const CarrierRows kind = carrier_rows(m, exact);
    const auto run = kind == CarrierRows::kExact  ? launch<Adds, CarrierRows::kExact>
                     : kind == CarrierRows::kFast ? launch<Adds, CarrierRows::kFast>
                                                  : launch<Adds, CarrierRows::kBoth>;
    return run(args, m, k, exact, pdl, stream);
}

}  // namespace

int run_rms_norm(const RowNormArgs& args, int64_t m, int64_t k, int64_t exact, bool pdl, cudaStream_t stream) {
    if (k % kCarrierColumns != 0 || k > kMaxNormColumns) return cudaErrorInvalidValue;
    return args.residual == nullptr ? launch_kind<false>(args, m, k, exact, pdl, stream)
                                    : launch_kind<true>(args, m, k, exact, pdl, stream);
}

}  // namespace nestedfp::cuda
