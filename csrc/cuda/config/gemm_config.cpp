// Which tile, cut how: a host function of the problem. The cost model (gemm_cost.cpp) predicts, corrected by what was
// timed on this card (gemm_timings.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/config/gemm.h"
#include "cuda/config/gemm_timings.h"
#include "cuda/config/tile_grid.h"

namespace nestedfp::cuda {
namespace {

TileGrid tile_grid(const GemmDesc& desc, const Tile& tile, int num_sms) {
    TileGrid grid{};
    grid.row_tiles = ceil_div(desc.n, tile.rows() * tile.multicast_ctas);
    grid.token_tiles = ceil_div(desc.m, tile.tokens);
    grid.steps = ceil_div(desc.k, tile.step());
    grid.slots = num_sms * tile.blocks_per_sm / tile.multicast_ctas;
    grid.raster_groups = ceil_div(desc.m, kRasterTokens);
    grid.row_warpgroups = tile.row_warpgroups;
    grid.tokens = tile.tokens;
    grid.multicast_ctas = tile.multicast_ctas;
    return grid;
}

}  // namespace

bool is_valid(const GemmDesc& desc, const GemmConfig& config, int num_sms, const char** reason) {
    if (config.tile < 0 || config.tile >= kTileCount) return refuse(reason, "no such tile");
    const Tile& tile = kTiles[config.tile];
    if (tile.precision != desc.precision) return refuse(reason, "the tile is of the other precision");
    return is_valid(tile_grid(desc, tile, num_sms), config, reason);
}

GemmPlan make_plan(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    return make_plan(tile_grid(desc, kTiles[config.tile], num_sms), config);
}

int64_t workspace_bytes(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    return workspace_bytes(tile_grid(desc, kTiles[config.tile], num_sms), config);
}

namespace {

// The best of the configs that the model finds promising, by the model corrected with what was timed.
GemmConfig best_config(const GemmDesc& desc, int num_sms) {
    constexpr double kPromising = 1.4;
    const std::vector<Timing> timings = timings_of(desc);
    std::vector<std::pair<double, GemmConfig>> found;
    double least_us = std::numeric_limits<double>::infinity();
    const auto consider = [&](const GemmConfig& config) {
        if (!is_valid(desc, config, num_sms, nullptr)) return;
        found.emplace_back(predict_us(desc, config, num_sms), config);
        least_us = std::min(least_us, found.back().first);
    };
    for (int tile = 0; tile < kTileCount; ++tile) {
        consider({tile, 1, false, false});
        for (const bool tail_only : {false, true}) {
            for (int split = 2; split <= kMaxClusterParts; ++split) consider({tile, split, tail_only, false});
            consider({tile, kStreamK, tail_only, true});
            for (int split = 2; split <= kMaxWorkspaceParts; ++split) consider({tile, split, tail_only, true});
        }
    }
    GemmConfig best = found.front().second;
    double best_us = std::numeric_limits<double>::infinity();
    for (const auto& [predicted, config] : found) {
        if (predicted > kPromising * least_us) continue;
        const double us = corrected_us(config, predicted, timings);
        if (us >= best_us) continue;
        best_us = us;
        best = config;
    }
    return best;
}

// A choice takes longer than a launch, and steps without a CUDA graph have any number of tokens: a few counts stand for
// all.
int64_t rounded_tokens(int64_t m) { return m <= 16 ? m : m <= 1024 ? 8 * ceil_div(m, 8) : 64 * ceil_div(m, 64); }

}  // namespace

GemmConfig choose_config(const GemmDesc& desc, int num_sms) {
    using Problem = std::tuple<Precision, int64_t, int64_t, int64_t, int>;
    constexpr size_t kRemembered = 1 << 16;
    thread_local std::map<Problem, GemmConfig> remembered;
    thread_local uint64_t version = 0;
    if (const uint64_t now = timings_version(); now != version || remembered.size() >= kRemembered) {
        remembered.clear();
        version = now;
    }
    const auto config_of = [&](const GemmDesc& problem) {
        const auto [found, is_new] =
            remembered.try_emplace({problem.precision, problem.m, problem.n, problem.k, num_sms});
        if (is_new) found->second = best_config(problem, num_sms);
        return found->second;
    };
    const GemmConfig config = config_of({desc.precision, rounded_tokens(desc.m), desc.n, desc.k});
    return is_valid(desc, config, num_sms, nullptr) ? config : config_of(desc);
}

}  // namespace nestedfp::cuda
