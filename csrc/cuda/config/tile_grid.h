// The tiles of a problem, cut into work for a grid of thread blocks: what all GEMMs of Hopper have in common.
#pragma once

#include <cstdint>

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// Tokens of a raster group: their activations stay in L2 while all rows of the weight pass by.
inline constexpr int64_t kRasterTokens = 2048;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// False, with why.
inline bool refuse(const char** reason, const char* text) {
    if (reason != nullptr) *reason = text;
    return false;
}

struct TileGrid {
    int64_t row_tiles, token_tiles;
    // Pipeline stages along K.
    int64_t steps;
    // Tiles that run at the same time.
    int64_t slots;
    int64_t raster_groups;
    // Of a tile.
    int row_warpgroups, tokens, multicast_ctas;
};

bool is_valid(const TileGrid& grid, const GemmConfig& config, const char** reason);
// Need is_valid.
GemmPlan make_plan(const TileGrid& grid, const GemmConfig& config);
int64_t workspace_bytes(const TileGrid& grid, const GemmConfig& config);

}  // namespace nestedfp::cuda
