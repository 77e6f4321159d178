#include "cuda/config/mixed.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/config/tile_grid.h"

namespace nestedfp::cuda {
namespace {

TileGrid tile_grid(int64_t n, int64_t k, int64_t token_tiles, int tokens, int step, int clusters, int multicast_ctas) {
    TileGrid grid{};
    grid.row_tiles = ceil_div(n, multicast_ctas * MixedTile::kRows);
    grid.token_tiles = token_tiles;
    grid.steps = ceil_div(k, step);
    grid.slots = clusters;
    grid.raster_groups = ceil_div(token_tiles * tokens, kRasterTokens);
    grid.row_warpgroups = MixedTile::kRows / 64;
    grid.tokens = tokens;
    grid.multicast_ctas = multicast_ctas;
    return grid;
}

GemmConfig split_config(int split) {
    if (split == kStreamKTail) return {0, kStreamK, true, true};
    return {0, split, false, split != 1};
}

// Each of the two kinds of blocks has half of them.
bool has_semaphores(const GemmPlan& plan) {
    const int split_tiles = plan.tiles - plan.whole_tiles;
    return split_tiles * plan.multicast_ctas * (MixedTile::kRows / 64) <= kSemaphores / 2;
}

using ByFastRows = std::map<int64_t, MixedConfig>;

// Beside fewer fast rows than a config was measured with it takes no longer; beside more its blocks may have to go once
// more over the weights. Far fewer would leave most of the blocks of the rest idle.
constexpr double kMostRatio = 1.5;

std::mutex mutex;
std::map<std::pair<int64_t, int64_t>, ByFastRows> all_choices;

}  // namespace

bool make_plan(const MixedDesc& desc, const MixedConfig& config, int num_sms, MixedPlan* plan, const char** reason) {
    if (config.tile < 0 || config.tile >= kMixedTileCount) return refuse(reason, "no such tile");
    const MixedTile& tile = kMixedTiles[config.tile];
    if (desc.exact_rows > tile.exact) return refuse(reason, "more exact rows than a mixed tile holds");
    const int64_t rest = std::max<int64_t>(0, desc.fast_rows - tile.fast);
    const int clusters = num_sms / tile.multicast_ctas;
    const int mixed_clusters = config.mixed_clusters == 0 ? clusters : config.mixed_clusters;
    if (mixed_clusters < 1 || mixed_clusters > clusters || (rest > 0) != (mixed_clusters < clusters))
        return refuse(reason, "blocks for no work, or work for no blocks");
    const TileGrid mixed =
        tile_grid(desc.n, desc.k, 1, tile.exact + tile.fast, MixedTile::kStep, mixed_clusters, tile.multicast_ctas);
    const GemmConfig mixed_config = split_config(config.mixed_split);
    if (!is_valid(mixed, mixed_config, reason)) return false;
    plan->mixed = make_plan(mixed, mixed_config);
    if (!has_semaphores(plan->mixed)) return refuse(reason, "too many split tiles");
    plan->mixed_workspace_bytes = workspace_bytes(mixed, mixed_config);
    plan->rest = {};
    plan->rest_workspace_bytes = 0;
    if (rest == 0) return true;
    const TileGrid others = tile_grid(desc.n, desc.k, ceil_div(rest, tile.rest_tokens), tile.rest_tokens,
                                      MixedTile::kRestStep, clusters - mixed_clusters, tile.multicast_ctas);
    const GemmConfig rest_config = split_config(config.rest_split);
    if (!is_valid(others, rest_config, reason)) return false;
    plan->rest = make_plan(others, rest_config);
    if (!has_semaphores(plan->rest)) return refuse(reason, "too many split tiles of the rest");
    plan->rest.first_block = plan->mixed.blocks;
    plan->rest_workspace_bytes = workspace_bytes(others, rest_config);
    return true;
}

void take_mixed(int64_t n, int64_t k, int64_t fast_rows, const MixedConfig& config) {
    const std::lock_guard lock(mutex);
    all_choices[{n, k}][fast_rows] = config;
}

void forget_mixed() {
    const std::lock_guard lock(mutex);
    all_choices.clear();
}

bool choose_mixed(const MixedDesc& desc, int num_sms, MixedConfig* config) {
    {
        const std::lock_guard lock(mutex);
        const auto found = all_choices.find({desc.n, desc.k});
        if (found == all_choices.end()) return false;
        const auto next = found->second.lower_bound(desc.fast_rows);
        if (next == found->second.end() || next->second.tile < 0) return false;
        if (static_cast<double>(next->first) > kMostRatio * static_cast<double>(desc.fast_rows)) return false;
        *config = next->second;
    }
    MixedPlan plan;
    const char* reason = nullptr;
    return make_plan(desc, *config, num_sms, &plan, &reason);
}

}  // namespace nestedfp::cuda
