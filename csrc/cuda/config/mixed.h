// The mixed GEMM as plain data: exact and fast rows from one pass over the weights.
//
// Some thread blocks multiply the exact rows and the first fast ones together (mixed tiles), the rest of them the other
// fast rows, as FP8's GEMM does. Blocks are shared out by what the two take.
#pragma once

#include <cstdint>
#include <iterator>

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// Tokens of a mixed tile; tokens of a tile of the rest; CTAs that load their activations together (Tile).
struct MixedTile {
    int exact, fast, rest_tokens, multicast_ctas;

    static constexpr int kRows = 128, kStep = 64, kRestStep = 128;
};

inline constexpr MixedTile kMixedTiles[] = {
#define NESTEDFP_MIXED_TILE(...) {__VA_ARGS__},
#include "cuda/mixed_tiles.inc"
#undef NESTEDFP_MIXED_TILE
};
inline constexpr int kMixedTileCount = static_cast<int>(std::size(kMixedTiles));

struct MixedDesc {
    int64_t exact_rows, fast_rows;
    int64_t n, k;
};

// A split of the last wave only, by Stream-K.
inline constexpr int kStreamKTail = -1;

// How many thread blocks, or clusters, compute mixed tiles, 0: all, and into how many parts K of each of the two is
// cut, 1: none; kStreamK; kStreamKTail. Partial sums go through a global workspace.
struct MixedConfig {
    int tile;
    int mixed_clusters;
    int mixed_split, rest_split;
};

struct MixedPlan {
    GemmPlan mixed, rest;
    int64_t mixed_workspace_bytes, rest_workspace_bytes;
};

// False, with the reason, if the config cannot compute the problem.
bool make_plan(const MixedDesc& desc, const MixedConfig& config, int num_sms, MixedPlan* plan, const char** reason);

// Which configs are faster than two launches, as measured when an engine starts
// (nestedfp/kernels/tuning/mixed_tuning.py). For weights [n, k] beside up to `fast_rows` fast rows; config.tile < 0:
// two launches are faster there. Replaces what was said of the same numbers. Thread-safe.
void take_mixed(int64_t n, int64_t k, int64_t fast_rows, const MixedConfig& config);

void forget_mixed();

// The config that was measured with as many fast rows, or the next number above. False: two launches, as for a shape
// that was not measured.
bool choose_mixed(const MixedDesc& desc, int num_sms, MixedConfig* config);

}  // namespace nestedfp::cuda
