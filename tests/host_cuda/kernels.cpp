// The kernels before a linear layer as C functions, compiled for the host (tests/kernels/test_kernels_on_host.py).
#include "cuda/kernels/norm.cu"
#include "cuda/kernels/quantize.cu"
#include "cuda/kernels/silu.cu"

using nestedfp::Precision;

extern "C" int norm(const void* x, const void* residual, void* sum, const void* weight, void* carrier, float* scales,
                    float epsilon, int64_t m, int64_t k, int to) {
    return nestedfp::cuda::run_rms_norm({x, residual, sum, weight, carrier, scales, epsilon}, m, k,
                                        static_cast<Precision>(to), nullptr);
}

extern "C" int silu(const void* x, void* carrier, float* scales, int64_t m, int64_t k, int to) {
    return nestedfp::cuda::run_silu_and_mul(x, carrier, scales, m, k, static_cast<Precision>(to), nullptr);
}

extern "C" int quantize(const void* x, uint8_t* codes, float* scales, int64_t m, int64_t k) {
    return nestedfp::cuda::run_quantize(x, k, codes, scales, m, k, nullptr);
}
