// The CPU kernels as raw pointers and sizes: no torch, no threads, no allocation. One table per instruction set.
//
// D[M,N] = X[M,K] @ W[N,K].T. Every output element is one chain of FP32 fused multiply-adds over k = 0..K-1 in
// ascending order, whatever the instruction set, batch size, blocking and number of threads: the results are the same
// bits.
//
// Packed weights. 16 output rows make a panel; a panel stores pairs of k, and in a pair the two k of a row are
// neighbours:
//     byte [panel][k / 2][n % 16][k % 2]
// so that one 32-byte load, seen as 16-bit lanes, has one k in the high bytes and the other in the low bytes. N is
// padded to 16 and K to 2 with zeros. `upper` keeps its bytes; `residual` replaces `lower` (csrc/format.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace nestedfp::cpu {

inline constexpr int kPanel = 16;         // output rows per panel
inline constexpr int kPairBytes = 32;     // one pair of k of one panel in one plane
inline constexpr int kMaxTileRows = 192;  // most rows of X that one tile covers: 192 x 256 floats stay in a 512 KiB L2
inline constexpr int kMaxTilePanels = 8;  // most panels of one tile

constexpr int64_t panel_count(int64_t n) { return (n + kPanel - 1) / kPanel; }
constexpr int64_t pair_count(int64_t k) { return (k + 1) / 2; }

enum class Element { kFloat, kHalf };

enum class Weights {
    kFp16,  // upper and residual planes: exactly the stored FP16 weights
    kFp8,   // upper plane alone: the weights rounded to E4M3; `residual` is never read
};

// X before the product: rows of K elements, converted once to FP32 and stored block by block as [K padded to 2][rows of
// block].
struct PackRowsArgs {
    // [M, K] contiguous, of type `element`.
    const void* x;
    Element element;
    int64_t m, k;
    // Round each row to E4M3 with its own scale.
    bool quantize;
    // [M, K padded to 2].
    float* packed;
    // [M] out, only if quantize.
    float* token_scale;
};

struct LinearArgs {
    int64_t m, n, k;
    // From pack_rows.
    const float* packed_x;
    // [M] or null.
    const float* token_scale;
    // [M, K] as the caller gave it; only outliers read it.
    const void* x;
    // Packed.
    const uint8_t* upper;
    // Packed; null unless Weights::kFp16.
    const int8_t* residual;
    // [N] or null.
    const void* bias;
    Element bias_element;
    // [outliers], rows ascending.
    const int32_t* outlier_rows;
    const int32_t* outlier_cols;
    const float* outlier_deltas;
    int64_t outliers;
    // [M, N] contiguous.
    void* out;
    // Of x and out.
    Element element;
};

// Half-open ranges: of panels, and of row blocks (see block_begin). At most kMaxTilePanels panels unless there is one
// block.
struct Tile {
    int64_t panel_begin, panel_end;
    int64_t block_begin, block_end;
};

struct SplitCounts {
    int64_t outliers;   // finite, |w| > 1.75
    int64_t nonfinite;  // infinities and NaNs
};

struct Kernels {
    const char* isa;
    int block_rows;  // most rows of X that share one pass over the weights

    // Splits `count` FP16 words. Elements outside +-1.75 are clamped and counted; non-finite ones too, so check the
    // counts.
    SplitCounts (*split)(const uint16_t* weight, uint8_t* upper, uint8_t* lower, int64_t count);
    // Packs row blocks [block_begin, block_end).
    void (*pack_rows)(const PackRowsArgs& args, int64_t block_begin, int64_t block_end);
    // Computes one tile of `out`, epilogue included.
    void (*linear[2])(const LinearArgs& args, Tile tile);  // indexed by Weights
};

// M rows in as few blocks of at most block_rows as possible, their sizes differing by at most one (6 + 2 would waste
// the 2).
constexpr int64_t block_count(int64_t m, int block_rows) { return (m + block_rows - 1) / block_rows; }
constexpr int64_t block_begin(int64_t m, int64_t blocks, int64_t block) { return m * block / blocks; }

const Kernels* scalar_kernels();
const Kernels* avx2_kernels();  // null if the compiler or target has none

// The table that this process uses: the best one that the processor runs, or the one that NESTEDFP_CPU_ISA names.
// Throws std::runtime_error if that name is unknown or the processor lacks it.
const Kernels& kernels();

}  // namespace nestedfp::cpu
