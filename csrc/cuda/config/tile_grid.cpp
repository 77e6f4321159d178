#include "cuda/config/tile_grid.h"

#include <algorithm>
#include <limits>

#include "cuda/config/stream_k.h"

namespace nestedfp::cuda {
namespace {

constexpr int64_t kMinWorkUnitSteps = 2;

}  // namespace

bool is_valid(const TileGrid& grid, const GemmConfig& config, const char** reason) {
    if (config.split < (config.global_workspace ? kStreamK : 1)) return refuse(reason, "split must be at least 1");
    if (config.split > (config.global_workspace ? kMaxWorkspaceParts : kMaxClusterParts)) {
        return refuse(reason, config.global_workspace ? "more than 8 parts" : "more than 4 blocks in a cluster");
    }
    if (grid.multicast_ctas > 1 && config.split > 1 && !config.global_workspace)
        return refuse(reason, "a multicast tile has no split-K in a cluster");
    const int64_t tiles = grid.row_tiles * grid.token_tiles;
    if (tiles * grid.multicast_ctas * config.split > std::numeric_limits<int>::max())
        return refuse(reason, "more tiles than a grid has blocks");
    if (config.split == 1) {
        return config.tail_only || config.global_workspace ? refuse(reason, "nothing to split in the tail") : true;
    }
    if (grid.steps < 2 * config.split) return refuse(reason, "K is too short for that split");
    int64_t split_tiles = tiles;
    if (config.tail_only) {
        const int64_t wave = config.global_workspace ? grid.slots : grid.slots / config.split * config.split;
        split_tiles = tiles % wave;
        if (split_tiles == 0 || split_tiles == tiles) return refuse(reason, "no last wave to split");
        if (split_tiles * config.split > grid.slots) return refuse(reason, "the last wave does not fit that split");
    }
    if (!config.global_workspace) return true;
    if (split_tiles * config.split > grid.slots) return refuse(reason, "more parts than blocks that run at once");
    if (config.split == kStreamK && tiles % grid.slots == 0)
        return refuse(reason, "whole tiles fill every wave already");
    if (split_tiles * grid.multicast_ctas * grid.row_warpgroups > kSemaphores)
        return refuse(reason, "more split tiles than semaphores");
    if (workspace_bytes(grid, config) > kMaxWorkspaceBytes) return refuse(reason, "too large a workspace");
    const GemmPlan plan = make_plan(grid, config);
    const int64_t column_steps = split_tiles / int{plan.columns} * grid.steps;
    if (column_steps < kMinWorkUnitSteps * plan.work_units) return refuse(reason, "too few steps for a work unit");
    if ((column_steps + 1) * plan.work_units > std::numeric_limits<int>::max())
        return refuse(reason, "too many steps to number");
    return true;
}

GemmPlan make_plan(const TileGrid& grid, const GemmConfig& config) {
    GemmPlan plan{};
    plan.multicast_ctas = grid.multicast_ctas;
    plan.row_tiles = static_cast<int>(grid.row_tiles);
    plan.token_tiles = static_cast<int>(grid.token_tiles);
    plan.raster_group = static_cast<int>(ceil_div(plan.token_tiles, grid.raster_groups));
    plan.last_raster_group = (plan.token_tiles - 1) % plan.raster_group + 1;
    plan.raster_group_tiles = plan.raster_group * plan.row_tiles;
    plan.tiles = plan.row_tiles * plan.token_tiles;
    plan.steps = static_cast<int>(grid.steps);
    plan.cluster = config.global_workspace ? 1 : config.split;
    plan.columns = 1;
    const int slots = static_cast<int>(grid.slots);
    if (config.split == 1) {
        plan.blocks = std::min(plan.tiles, slots);
        plan.whole_tiles = plan.tiles;
    } else if (config.tail_only) {
        plan.blocks = slots / plan.cluster * plan.cluster;
        plan.whole_tiles = plan.tiles / plan.blocks * plan.blocks;
    } else {
        plan.blocks = plan.tiles * plan.cluster;
        plan.whole_tiles = 0;
    }
    if (config.global_workspace && config.split != 1) {
        const bool is_rectangle = plan.raster_group == plan.token_tiles && plan.whole_tiles % plan.token_tiles == 0;
        if (is_rectangle && plan.token_tiles <= slots) plan.columns = plan.token_tiles;
        const int rest = plan.tiles - plan.whole_tiles;
        plan.work_units = config.split == kStreamK ? slots / plan.columns : rest / plan.columns * config.split;
        plan.column_steps = rest / plan.columns * plan.steps;
        if (!config.tail_only) plan.blocks = plan.work_units * plan.columns;
    }
    return plan;
}

int64_t workspace_bytes(const TileGrid& grid, const GemmConfig& config) {
    const GemmPlan plan = make_plan(grid, config);
    const int64_t tile_bytes = int64_t{4} * 64 * grid.row_warpgroups * grid.tokens;
    return kSlotsPerBlock * plan.work_units * plan.columns * plan.multicast_ctas * tile_bytes;
}

}  // namespace nestedfp::cuda
