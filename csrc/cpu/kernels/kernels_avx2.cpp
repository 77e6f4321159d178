// AVX2 + FMA + F16C kernels: 8 FP32 lanes, 16 registers, so 6 rows of 16 outputs (12 sums) in the prefill kernel.
#include "cpu/kernels/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpu/kernels/linear_tile.h"
#include "cpu/kernels/rows256.h"

namespace nestedfp::cpu {
namespace {

struct Avx2 {
    using Reg = __m256;
    static constexpr int kLanes = 8;
    static constexpr int kVecs = kPanel / kLanes;
    static constexpr int kBlockRows = 6;
    // 256 k at a time: 8 KiB of FP16 words and 6 KiB of X in a 32 KiB first-level cache, 192 KiB of X in the second.
    static constexpr int kDepthPairs = 128;

    // Enough panels at once for 8 independent sums: two FMA pipes of 4 cycles' latency.
    static constexpr int stream_panels(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

    static Reg zero() { return _mm256_setzero_ps(); }
    static Reg load(const float* p) { return _mm256_load_ps(p); }
    static void store(float* p, Reg x) { _mm256_store_ps(p, x); }
    static Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
    static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }

    static Reg load_words(const uint16_t* p) {
        return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    }

    static void store_as(float* p, Reg x) { _mm256_storeu_ps(p, x); }

    static void store_as(Half* p, Reg x) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
};

constexpr Kernels kTable = make_table<Avx2>("avx2", pack_rows<Avx2::kBlockRows>);

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace nestedfp::cpu

#else

const nestedfp::cpu::Kernels* nestedfp::cpu::avx2_kernels() { return nullptr; }

#endif
