// Which tile, cut how: a host function of the problem. What was timed on this card comes first (gemm_timings.h), then a
// table measured on another, then the cost model alone (gemm_cost.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/config/gemm.h"
#include "cuda/config/gemm_cost.h"
#include "cuda/config/gemm_timings.h"
#include "cuda/config/stream_k.h"

namespace nestedfp::cuda {
namespace {

constexpr int64_t kMaxCluster = 4;
constexpr int64_t kMaxParts = 8;
constexpr int64_t kMaxPartialSumBytes = int64_t{64} << 20;
constexpr int64_t kMinShareSteps = 2;
// Tokens that are walked together: their activations stay in L2 while all rows of the weight pass by.
constexpr int64_t kGroupTokens = 2048;

struct TableRow {
    Precision precision;
    int64_t n, k, m;
    GemmConfig config;
};

constexpr TableRow kTable[] = {
#define NESTEDFP_ROW(precision, n, k, m, tile, split, tail_only, through_memory) \
    {Precision::precision, n, k, m, {tile, split, tail_only != 0, through_memory != 0}},
#include "cuda/generated/gemm_table.inc"
#undef NESTEDFP_ROW
    {Precision::kFp16, 0, 0, 0, {0, 1, false, false}},  // the table may be empty, an array may not
};

constexpr bool is_tile_of(int tile, Precision precision) {
    return tile >= 0 && tile < kTileCount && kTiles[tile].precision == precision;
}

// The table names tiles by their position in tiles.inc; the compiler points at the line that does not fit.
#define NESTEDFP_ROW(precision, n, k, m, tile, ...)       \
    static_assert(is_tile_of(tile, Precision::precision), \
                  "gemm_table.inc: tiles.inc has no tile " #tile " of that precision; run benchmarks.gpu_tune again");
#include "cuda/generated/gemm_table.inc"
#undef NESTEDFP_ROW

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The row of the measured table for a problem, or null. Rows hold for the multiprocessor count they were measured with.
// A decode batch takes the row with the next larger M; larger M does so only close below a row, since the number of
// tiles and with it the best split changes from one multiple of a tile's tokens to the next.
const TableRow* measured_row(const GemmDesc& desc, int num_sms, bool has_counters) {
    constexpr int64_t kDecodeTokens = 128;
    constexpr double kCloseBelow = 0.94;
    const TableRow* best = nullptr;
    if (num_sms != 132) return best;
    for (const TableRow& row : kTable) {
        if (row.precision != desc.precision || row.n != desc.n || row.k != desc.k || row.m < desc.m) continue;
        if (row.m > kDecodeTokens && desc.m < kCloseBelow * row.m) continue;
        if (row.config.through_memory && !has_counters) continue;
        if ((best == nullptr || row.m < best->m) && is_valid(desc, row.config, num_sms, nullptr)) best = &row;
    }
    return best;
}

}  // namespace

bool is_valid(const GemmDesc& desc, const GemmConfig& config, int num_sms, const char** reason) {
    const auto refuse = [&](const char* text) {
        if (reason != nullptr) *reason = text;
        return false;
    };
    if (config.tile < 0 || config.tile >= kTileCount) return refuse("no such tile");
    const Tile& tile = kTiles[config.tile];
    if (tile.precision != desc.precision) return refuse("the tile is of the other precision");
    if (config.split < (config.through_memory ? kEvenShares : 1)) return refuse("split must be at least 1");
    if (config.split > (config.through_memory ? kMaxParts : kMaxCluster)) {
        return refuse(config.through_memory ? "more than 8 parts" : "more than 4 blocks in a cluster");
    }
    if (tile.pair > 1 && config.split > 1 && !config.through_memory) return refuse("a pair has no parts in a cluster");
    const int64_t tiles = ceil_div(desc.n, tile.rows() * tile.pair) * ceil_div(desc.m, tile.tokens);
    if (tiles * tile.pair * config.split > std::numeric_limits<int>::max())
        return refuse("more tiles than a grid has blocks");
    if (config.split == 1) {
        return config.tail_only || config.through_memory ? refuse("nothing to split in the tail") : true;
    }
    const int64_t steps = ceil_div(desc.k, tile.step());
    if (steps < 2 * config.split) return refuse("K is too short for that split");
    const int64_t slots = int64_t{num_sms} * tile.blocks_per_sm / tile.pair;
    int64_t split_tiles = tiles;
    if (config.tail_only) {
        const int64_t wave = config.through_memory ? slots : slots / config.split * config.split;
        split_tiles = tiles % wave;
        if (split_tiles == 0 || split_tiles == tiles) return refuse("no last wave to split");
        if (split_tiles * config.split > slots) return refuse("the last wave does not fit that split");
    }
    if (!config.through_memory) return true;
    if (split_tiles * config.split > slots) return refuse("more parts than blocks that run at once");
    if (config.split == kEvenShares && tiles % slots == 0) return refuse("whole tiles are even already");
    if (split_tiles * tile.pair * tile.row_warpgroups > kCounters)
        return refuse("too many tiles to split through memory");
    if (partial_sum_bytes(desc, config, num_sms) > kMaxPartialSumBytes) return refuse("too many partial sums");
    const GemmPlan plan = make_plan(desc, config, num_sms);
    const int64_t column_steps = split_tiles / int{plan.columns} * steps;
    if (column_steps < kMinShareSteps * plan.shares) return refuse("too few steps to share");
    if ((column_steps + 1) * plan.shares > std::numeric_limits<int>::max()) return refuse("too many steps to share");
    return true;
}

GemmPlan make_plan(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    const Tile& tile = kTiles[config.tile];
    GemmPlan plan{};
    plan.pair = tile.pair;
    plan.row_tiles = static_cast<int>(ceil_div(desc.n, tile.rows() * plan.pair));
    plan.token_tiles = static_cast<int>(ceil_div(desc.m, tile.tokens));
    const int64_t groups = ceil_div(desc.m, kGroupTokens);
    plan.group = static_cast<int>(ceil_div(plan.token_tiles, groups));
    plan.last_group = (plan.token_tiles - 1) % plan.group + 1;
    plan.group_tiles = plan.group * plan.row_tiles;
    plan.tiles = plan.row_tiles * plan.token_tiles;
    plan.steps = static_cast<int>(ceil_div(desc.k, tile.step()));
    plan.cluster = config.through_memory ? 1 : config.split;
    plan.columns = 1;
    const int slots = num_sms * tile.blocks_per_sm / plan.pair;
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
    if (config.through_memory && config.split != 1) {
        const bool is_rectangle = plan.group == plan.token_tiles && plan.whole_tiles % plan.token_tiles == 0;
        if (is_rectangle && plan.token_tiles <= slots) plan.columns = plan.token_tiles;
        const int rest = plan.tiles - plan.whole_tiles;
        plan.shares = config.split == kEvenShares ? slots / plan.columns : rest / plan.columns * config.split;
        plan.column_steps = rest / plan.columns * plan.steps;
        if (!config.tail_only) plan.blocks = plan.shares * plan.columns;
    }
    return plan;
}

int64_t partial_sum_bytes(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    const GemmPlan plan = make_plan(desc, config, num_sms);
    const Tile& tile = kTiles[config.tile];
    return int64_t{4} * kSlotsPerBlock * plan.shares * plan.columns * plan.pair * tile.rows() * tile.tokens;
}

double predict_us(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    return predict_us(desc, config, num_sms, kCostModel, tile_cost(config.tile));
}

namespace {

// Calls visit(config, predicted microseconds) for every config that can compute the problem.
template <class Visit>
void for_each_config(const GemmDesc& desc, int num_sms, bool has_counters, const Visit& visit) {
    const auto consider = [&](const GemmConfig& config) {
        if ((config.through_memory && !has_counters) || !is_valid(desc, config, num_sms, nullptr)) return;
        visit(config, predict_us(desc, config, num_sms));
    };
    for (int tile = 0; tile < kTileCount; ++tile) {
        if (kTiles[tile].precision != desc.precision) continue;
        consider({tile, 1, false, false});
        for (const bool tail_only : {false, true}) {
            for (int split = 2; split <= kMaxCluster; ++split) consider({tile, split, tail_only, false});
            consider({tile, kEvenShares, tail_only, true});
            for (int split = 2; split <= kMaxParts; ++split) consider({tile, split, tail_only, true});
        }
    }
}

GemmConfig predicted_best(const GemmDesc& desc, int num_sms, bool has_counters) {
    GemmConfig best{0, 1, false, false};
    double best_us = std::numeric_limits<double>::infinity();
    for_each_config(desc, num_sms, has_counters, [&](const GemmConfig& config, double us) {
        if (us >= best_us) return;
        best_us = us;
        best = config;
    });
    return best;
}

// The best of the configs that the model finds promising, by the model corrected with what was timed.
GemmConfig corrected_best(const GemmDesc& desc, int num_sms, bool has_counters, const std::vector<Timing>& timings) {
    constexpr double kPromising = 1.4;
    std::vector<std::pair<double, GemmConfig>> found;
    double least_us = std::numeric_limits<double>::infinity();
    for_each_config(desc, num_sms, has_counters, [&](const GemmConfig& config, double us) {
        found.emplace_back(us, config);
        least_us = std::min(least_us, us);
    });
    GemmConfig best = found.front().second;
    double best_us = std::numeric_limits<double>::infinity();
    for (const auto& [predicted, config] : found) {
        if (predicted > kPromising * least_us) continue;
        const double us = corrected_us(desc, config, predicted, timings);
        if (us >= best_us) continue;
        best_us = us;
        best = config;
    }
    return best;
}

}  // namespace

GemmConfig choose_config(const GemmDesc& desc, int num_sms, bool has_counters) {
    // Predictions for each of a model's hundred GEMMs would show in a step without a CUDA graph.
    using Problem = std::tuple<Precision, int64_t, int64_t, int64_t, int, bool>;
    constexpr size_t kRemembered = 1 << 16;
    thread_local std::map<Problem, GemmConfig> remembered;
    thread_local uint64_t version = 0;
    if (const uint64_t now = timings_version(); now != version || remembered.size() >= kRemembered) {
        remembered.clear();
        version = now;
    }
    const Problem problem{desc.precision, desc.m, desc.n, desc.k, num_sms, has_counters};
    if (const auto found = remembered.find(problem); found != remembered.end()) return found->second;
    GemmConfig config;
    if (const std::vector<Timing> timings = timings_of(desc); !timings.empty()) {
        config = corrected_best(desc, num_sms, has_counters, timings);
    } else if (const TableRow* row = measured_row(desc, num_sms, has_counters); row != nullptr) {
        config = row->config;
    } else {
        config = predicted_best(desc, num_sms, has_counters);
    }
    return remembered.emplace(problem, config).first->second;
}

}  // namespace nestedfp::cuda
