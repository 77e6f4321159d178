// The compiled tiles as data. The list itself is cuda/tiles.inc, from which cuda/generate_tiles.py writes the files
// that compile them.
#pragma once

#include <iterator>

#include "precision.h"

namespace nestedfp::cuda {

// A compiled kernel. The weights are the M operand of wgmma (64 rows a warpgroup), the tokens its N operand.
struct Tile {
    Precision precision;
    // Each owns 64 output features.
    int row_warpgroups;
    // Each owns every k_warpgroups-th slice of K; they add up through shared memory.
    int k_warpgroups;
    int tokens;
    int blocks_per_sm;
    // 2: a cluster of two CTAs with TMA multicast. The two compute neighbouring row tiles in lockstep, and each loads
    // half of their common activations into the shared memory of both, so that L2 delivers them once. 1: no cluster.
    int multicast_ctas;

    constexpr int rows() const { return 64 * row_warpgroups; }
    // wgmma and TMA take 256 tokens at most: wider tiles are computed in two halves and loaded in two boxes, one by
    // each of the CTAs of a cluster.
    constexpr int instructions() const { return tokens > 256 ? 2 : 1; }
    constexpr int box_tokens() const { return tokens / (multicast_ctas == 2 ? 2 : instructions()); }
    // Columns of K per pipeline stage: 128 bytes of activations for each of the k_warpgroups.
    constexpr int step() const { return (precision == Precision::kFp16 ? 64 : 128) * k_warpgroups; }
};

inline constexpr Tile kTiles[] = {
#define NESTEDFP_TILE(precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm, multicast_ctas) \
    {Precision::precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm, multicast_ctas},
#include "cuda/tiles.inc"
#undef NESTEDFP_TILE
};

inline constexpr int kTileCount = static_cast<int>(std::size(kTiles));

}  // namespace nestedfp::cuda
