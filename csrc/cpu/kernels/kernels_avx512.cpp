// AVX-512 F/BW/DQ/VL kernels: 16 FP32 lanes, 32 registers, so 12 rows of 32 outputs (24 sums) in the prefill kernel.
#include "cpu/kernels/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "cpu/kernels/linear_tile.h"
#include "cpu/kernels/rows256.h"

namespace nestedfp::cpu {
namespace {

struct Avx512 {
    using Reg = __m512;
    using Rows = RowList<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
    static constexpr int kLanes = 16;
    static constexpr int kVecs = kPanel / kLanes;
    static constexpr int kBlockRows = 12;
    static constexpr int kMultiplyPanels = 2;
    // 192 k at a time: 12 KiB of FP16 words and 9 KiB of X in a 32 KiB first-level cache.
    static constexpr int kDepthPairs = 96;

    // Enough panels at once to keep the FMA pipes busy, while at most 24 sums stay in registers.
    static constexpr int stream_panels(int rows) { return rows <= 6 ? 4 : 2; }

    static Reg zero() { return _mm512_setzero_ps(); }
    static Reg load(const float* p) { return _mm512_load_ps(p); }
    static void store(float* p, Reg x) { _mm512_store_ps(p, x); }
    static Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
    static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }

    static Reg load_words(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    }

    static void store_as(float* p, Reg x) { _mm512_storeu_ps(p, x); }

    static void store_as(Half* p, Reg x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }

    static void store_as(BFloat16* p, Reg x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i top = _mm512_srli_epi32(bits, 16);
        const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
        const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
        const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));  // a NaN must not round up into infinity
        const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet)));
    }
};

constexpr Kernels kTable = make_table<Avx512>("avx512", pack_rows<Avx512::kBlockRows>);

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

}  // namespace nestedfp::cpu

#else

const nestedfp::cpu::Kernels* nestedfp::cpu::avx512_kernels() { return nullptr; }

#endif
