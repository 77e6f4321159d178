// Per-token activation quantiser: amax, scale and cast in one pass over x, the K permutation of the packed upper plane
// included. The arithmetic is nestedfp/kernels/activations.py's, bit for bit:
//
//     scale = max(amax / 448, 1 / (448 * 512))
//     codes = x / scale
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "activations.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

constexpr uint32_t kInfinityBits = 0x7c00;

NESTEDFP_DEVICE uint32_t max_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b & 0x7fff7fff); }

// Two E4M3 codes, that of `low` in the low byte.
NESTEDFP_DEVICE uint32_t to_codes(float low, float high) {
    uint16_t codes = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
#else
    __trap();  // never launched there: no E4M3 products either
#endif
    return codes;
}

// Eight neighbouring columns of one token, as read from x:
//
// clang-format off
//     columns                   k = 16 * j + 8 * h + 0..7
//     belong to bytes           16 * t + 4 * j + h  and  16 * t + 4 * j + h + 2      for t = 0..3
// clang-format on
//
// So two neighbouring threads (h = 0 and 1) swap halves, and then each owns whole words of two t.
NESTEDFP_DEVICE void store_codes(uint4 raw, float scale, uint8_t* codes, int chunk) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t packed[4];  // [t]: bytes for c = h and h + 2
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&words[t]));
        packed[t] = to_codes(__fdiv_rn(v.x, scale), __fdiv_rn(v.y, scale));
    }
    const int h = chunk % 2, j = chunk / 2 % 4;
    // Thread h keeps t = 2h, 2h + 1 and gives away the others.
    const uint32_t give = h == 0 ? packed[2] | packed[3] << 16 : packed[0] | packed[1] << 16;
    const uint32_t keep = h == 0 ? packed[0] | packed[1] << 16 : packed[2] | packed[3] << 16;
    const uint32_t got = __shfl_xor_sync(~0u, give, 1);
    const uint32_t h0 = h == 0 ? keep : got, h1 = h == 0 ? got : keep;  // two t each: (c 0, c 2) and (c 1, c 3)
    uint32_t* const to = reinterpret_cast<uint32_t*>(codes + chunk / 8 * 64);
    to[(2 * h) * 4 + j] = __byte_perm(h0, h1, 0x5140);
    to[(2 * h + 1) * 4 + j] = __byte_perm(h0, h1, 0x7362);
}

// One block per token; a thread holds `Chunks` chunks of 8 columns in registers between the two halves of the work. The
// number of threads is a multiple of 32, so every shuffle is complete: chunks beyond the row are zeros that are not
// stored. Sixteen chunks take more registers than 1024 threads have.
constexpr int max_threads(int chunks) { return chunks > 8 ? 640 : 1024; }

template <int Chunks>
__global__ void __launch_bounds__(max_threads(Chunks))
    quantize_kernel(const __half* x, int64_t x_pitch, uint8_t* codes, float* scales, int k, bool is_aligned) {
    __shared__ uint32_t warp_max[32];
    pdl_launch_dependents();  // it reads only weights until this kernel has finished
    pdl_wait();               // which writes x
    const __half* const row = x + blockIdx.x * x_pitch;
    const int chunks = static_cast<int>(upper_pitch(k)) / 8;
    uint4 raw[Chunks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = i * blockDim.x + threadIdx.x;
        raw[i] = make_uint4(0, 0, 0, 0);
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
        largest = max_halves(max_halves(max_halves(max_halves(largest, raw[i].x), raw[i].y), raw[i].z), raw[i].w);
    }
    largest = max(largest & 0xffff, largest >> 16);
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = threadIdx.x % 32 < blockDim.x / 32 ? warp_max[threadIdx.x % 32] : 0;
    largest = __reduce_max_sync(~0u, largest);
    // Half patterns order like their magnitudes, infinities and NaNs above all: such a row has no scale.
    const float amax = __half2float(__ushort_as_half(static_cast<unsigned short>(largest)));
    const float scale =
        largest >= kInfinityBits ? __int_as_float(0x7fc00000) : fmaxf(__fdiv_rn(amax, kE4m3Max), kMinScale);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    uint8_t* const to = codes + blockIdx.x * upper_pitch(k);
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
        const int chunk = i * blockDim.x + threadIdx.x;
        if (chunk / 32 * 32 < chunks) {  // a warp stores together or not at all; rows are whole blocks of 8 chunks
            if (chunk / 8 * 8 < chunks) {
                store_codes(raw[i], scale, to, chunk);
            } else {
                __shfl_xor_sync(~0u, 0u, 1);
            }
        }
    }
}

template <int Chunks>
cudaError_t launch(const __half* x, int64_t x_pitch, uint8_t* codes, float* scales, int64_t m, int64_t k, int threads,
                   bool pdl, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(m));
    config.blockDim = dim3(threads);
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = pdl ? 1 : 0;
    const bool is_aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_pitch % 8 == 0;
    return cudaLaunchKernelEx(&config, quantize_kernel<Chunks>, x, x_pitch, codes, scales, static_cast<int>(k),
                              is_aligned);
}

}  // namespace

int run_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k, bool pdl,
                 cudaStream_t stream) {
    const auto* const halves = static_cast<const __half*>(x);
    const int64_t chunks = upper_pitch(k) / 8;
    const auto threads = [&](int per_thread) {
        return static_cast<int>(round_up((chunks + per_thread - 1) / per_thread, 32));
    };
    // Many tokens: fewer threads each with more in flight, so that several blocks share a multiprocessor and one loads
    // while another stores. Few tokens: the latency of one block counts.
    if (m > 256) {
        if (chunks <= 1024) return launch<4>(halves, x_pitch, codes, scale, m, k, threads(4), pdl, stream);
        if (chunks <= 8192) return launch<8>(halves, x_pitch, codes, scale, m, k, threads(8), pdl, stream);
    }
    if (chunks <= 2048) return launch<2>(halves, x_pitch, codes, scale, m, k, threads(2), pdl, stream);
    if (chunks <= 4096) return launch<4>(halves, x_pitch, codes, scale, m, k, threads(4), pdl, stream);
    if (chunks <= 8192) return launch<8>(halves, x_pitch, codes, scale, m, k, threads(8), pdl, stream);
    if (k <= kMaxQuantizedColumns) return launch<16>(halves, x_pitch, codes, scale, m, k, threads(16), pdl, stream);
    return cudaErrorInvalidValue;
}

}  // namespace nestedfp::cuda
