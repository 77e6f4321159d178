#include "cuda/portable/plan.h"

#include <algorithm>

#include "cuda/config/tile_grid.h"

namespace nestedfp::cuda {
namespace {

constexpr int kMaxSplit = 16;
// Of a part: shorter ones do little but fill and drain.
constexpr int kMinSteps = 4;

// Clocks of an A100, roughly, to be compared with each other only: what the busiest multiprocessor loads and
// multiplies, and no less than its memory needs for the weights.
double clocks(PortableOperands operands, const PortablePlan& plan, int num_sms) {
    constexpr double kChipBytes = 13, kSmBytes = 26;  // a clock and multiprocessor: all at once, and one by itself
    constexpr double kMultiplyAdds = 1024;            // of FP16
    constexpr double kStep = 60, kFillSteps = 3, kReducePerSum = 8;  // a barrier a stage; sums through L2
    const PortableTile& tile = kPortableTiles[plan.tile];
    const int64_t waves = ceil_div(plan.blocks(), static_cast<int64_t>(num_sms) * tile.blocks_per_sm);
    const int64_t resident = std::min<int64_t>(tile.blocks_per_sm, ceil_div(plan.blocks(), num_sms));
    const double fp8 = operands == PortableOperands::kFp8 ? 2 : 1;
    const double step_columns = kBlockCols * portable_step_blocks(operands);
    const double stage_bytes = portable_stage_bytes(operands, tile);
    const double multiply = tile.rows() * tile.tokens() * step_columns / (kMultiplyAdds * fp8);
    const double steps = static_cast<double>(ceil_div(plan.steps, plan.split)) + kFillSteps;
    const double reduce = plan.split > 1 ? kReducePerSum * plan.split * tile.sums() : 0;
    const double busiest = waves * (steps * (std::max(stage_bytes / kSmBytes, multiply) * resident + kStep) + reduce);
    const double memory = plan.row_tiles * plan.steps * stage_bytes / (kChipBytes * num_sms);
    return std::max(busiest, memory) + 0.1 * busiest;  // they do not overlap without a rest
}

}  // namespace

PortablePlan cut_portable(PortableOperands operands, int64_t m, int64_t n, int64_t k, int tile, int split) {
    const PortableTile& shape = kPortableTiles[tile];
    PortablePlan plan{};
    plan.tile = tile;
    plan.split = split;
    plan.row_tiles = static_cast<int>(ceil_div(n, shape.rows()));
    plan.token_tiles = static_cast<int>(ceil_div(m, shape.tokens()));
    plan.steps = static_cast<int>(ceil_div(k, kBlockCols * portable_step_blocks(operands)));
    plan.raster_group = std::min(plan.token_tiles, std::max(1, static_cast<int>(kRasterTokens) / shape.tokens()));
    return plan;
}

PortablePlan plan_portable(PortableOperands operands, int64_t m, int64_t n, int64_t k, int num_sms) {
    PortablePlan best{};
    double best_clocks = -1;
    for (int tile = 0; tile < kPortableTileCount; ++tile) {
        for (int split = 1; split <= kMaxSplit; ++split) {
            const PortablePlan plan = cut_portable(operands, m, n, k, tile, split);
            if (split > 1 && (plan.steps / split < kMinSteps || plan.tiles() > kSemaphores ||
                              portable_workspace_bytes(plan) > kMaxWorkspaceBytes)) {
                break;
            }
            const double predicted = clocks(operands, plan, num_sms);
            if (best_clocks >= 0 && predicted >= best_clocks) continue;
            best = plan;
            best_clocks = predicted;
        }
    }
    return best;
}

int64_t portable_workspace_bytes(const PortablePlan& plan) {
    if (plan.split == 1) return 0;
    const PortableTile& tile = kPortableTiles[plan.tile];
    return static_cast<int64_t>(plan.blocks()) * tile.threads() * tile.sums() * 4;
}

}  // namespace nestedfp::cuda
