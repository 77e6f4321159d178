// Which tile, cut how: a pure host function of the problem. A measured table comes first, a cost model fills its gaps.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "gemm.h"
#include "shares.h"

namespace nestedfp::cuda {
namespace {

constexpr Tile kTiles[] = {
#define NESTEDFP_TILE(precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm, pair) \
    {Precision::precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm, pair},
#include "tiles.inc"
#undef NESTEDFP_TILE
};

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
#include "gemm_table.inc"
#undef NESTEDFP_ROW
    {Precision::kFp16, 0, 0, 0, {0, 1, false, false}},  // the table may be empty, an array may not
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// H100 SXM figures, per multiprocessor. Clocks at 1.755 GHz.
constexpr double kClocksPerUs = 1755;
constexpr double kMemoryBytesPerClock = 13.0 * 132;  // whole chip: 3.0 TB/s
constexpr double kSharedBytesPerClock = 128;

// Thread blocks that run at once. Clusters stay within a GPC, so larger ones leave multiprocessors idle: an H100 holds
// 30 clusters of four and fewer than 40 of three at one block per multiprocessor.
double resident_blocks(const Tile& tile, int split, int num_sms) {
    constexpr double kUsable[] = {1, 1, 1, 0.87, 0.909};
    return num_sms * tile.blocks_per_sm * kUsable[split];
}

// Clocks of one pipeline stage with the multiprocessor to itself.
double stage_clocks(const Tile& tile) {
    const double row_groups = tile.row_warpgroups * tile.k_warpgroups;
    const double tensor = row_groups * 4 * tile.tokens / 2;
    // Shared memory sees each byte written by TMA, the weights read once (by the decoder or by wgmma) and the
    // activations read once by every group of 64 rows.
    const double weight_bytes = row_groups * 8192, x_bytes = tile.k_warpgroups * tile.tokens * 128.0;
    const double shared = (2 * weight_bytes + x_bytes * (1 + tile.row_warpgroups)) / kSharedBytesPerClock;
    // Decode: about 42 instructions at half rate per warp and stage on each of the four schedulers.
    const double decode = tile.precision == Precision::kFp16 ? row_groups * 84 : 0;
    const double latency = 300;  // of one stage through one warpgroup, from full barrier to release
    // Measured over the bound, all multiprocessors busy, where both planes are decoded.
    const double fp16_losses = tile.tokens < 128   ? 1.45
                               : tile.tokens < 176 ? 1.3
                               : tile.tokens < 192 ? 1.27
                               : tile.tokens < 256 ? 1.2 + 0.05 * (tile.row_warpgroups - 2)
                                                   : 1.15;
    const double losses = tile.precision == Precision::kFp16 ? fp16_losses : 1.05;
    return losses * std::max({tensor, shared, decode, latency / tile.blocks_per_sm});
}

// Blocks whose shares begin at different columns of K read different activations at the same time. L2 then delivers
// them more often, and memory does where they do not stay in L2 beside the weights that stream by. Measured.
double misalignment(const GemmDesc& desc, const GemmPlan& plan) {
    const double x_mb = 1e-6 * desc.m * desc.k * (desc.precision == Precision::kFp16 ? 2 : 1);
    return plan.pair > 1 ? 1.03 + std::max(0.0, x_mb - 40) / 160 : 1.08 + std::max(0.0, x_mb - 20) / 80;
}

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

int tile_count() { return static_cast<int>(std::size(kTiles)); }

const Tile& tile_at(int index) { return kTiles[index]; }

bool is_valid(const GemmDesc& desc, const GemmConfig& config, int num_sms, const char** reason) {
    const auto refuse = [&](const char* text) {
        if (reason != nullptr) *reason = text;
        return false;
    };
    if (config.tile < 0 || config.tile >= tile_count()) return refuse("no such tile");
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
    const Tile& tile = kTiles[config.tile];
    const GemmPlan plan = make_plan(desc, config, num_sms);
    const double slots = static_cast<double>(num_sms) * tile.blocks_per_sm / plan.pair;
    const double stage = stage_clocks(tile) * tile.blocks_per_sm;  // blocks of one multiprocessor take turns
    const double output_bytes = 2.0 * tile.rows() * tile.tokens;
    const double store = 600 + output_bytes / 64;
    // With clusters of four the whole tiles, too, run on fewer blocks at a time.
    const double turns = plan.cluster > 1 ? std::ceil(plan.blocks / resident_blocks(tile, plan.cluster, num_sms)) : 1;
    const double whole_waves = turns * std::ceil(plan.whole_tiles / slots);
    double clocks = whole_waves * (plan.steps * stage + store);
    if (plan.shares > 0) {
        const double share = std::ceil(static_cast<double>(plan.column_steps) / int{plan.shares});
        // A block stores the sums of its first part and collects those of its last tile, two bytes of FP16 output
        // having grown to four.
        const double parts = config.split == kEvenShares ? int{plan.steps} / share + 1 : config.split;
        clocks += share * stage * misalignment(desc, plan) + store + 2500 + parts * 2 * output_bytes / 50;
    } else if (config.split > 1) {
        const double part_count = (plan.tiles - plan.whole_tiles) * config.split;
        const double part = std::ceil(1.0 * plan.steps / config.split) * stage + store;
        const double exchange = 1500 + 2 * output_bytes / 28 * (config.split == 2 ? 1 : 1.5);
        clocks += std::ceil(part_count / resident_blocks(tile, config.split, num_sms)) * (part + exchange);
    }
    const double weight_bytes = 1.0 * desc.n * desc.k * (desc.precision == Precision::kFp16 ? 2 : 1);
    const double x_bytes = 1.0 * desc.m * desc.k * (desc.precision == Precision::kFp16 ? 2 : 1);
    // A block takes in at most about 40 bytes per clock, so few blocks cannot use the whole memory.
    const double active = std::min<double>(num_sms, plan.blocks * plan.pair);
    const double bandwidth = std::min(kMemoryBytesPerClock, active * 40);
    const double memory = (weight_bytes + x_bytes + 2.0 * desc.m * desc.n) / bandwidth;
    // Overlap of the two is not perfect where they are close.
    return (std::max(clocks, memory) + 0.15 * std::min(clocks, memory)) / kClocksPerUs + 2.5;
}

namespace {

GemmConfig predicted_best(const GemmDesc& desc, int num_sms, bool has_counters) {
    GemmConfig best{0, 1, false, false};
    double best_us = std::numeric_limits<double>::infinity();
    const auto consider = [&](const GemmConfig& config) {
        if (!is_valid(desc, config, num_sms, nullptr) || (config.through_memory && !has_counters)) return;
        const double us = predict_us(desc, config, num_sms);
        if (us < best_us) {
            best_us = us;
            best = config;
        }
    };
    for (int tile = 0; tile < tile_count(); ++tile) {
        if (kTiles[tile].precision != desc.precision) continue;
        consider({tile, 1, false, false});
        for (const bool tail_only : {false, true}) {
            for (int split = 2; split <= kMaxCluster; split *= 2) consider({tile, split, tail_only, false});
            consider({tile, kEvenShares, tail_only, true});
            for (int split = 2; split <= kMaxParts; ++split) consider({tile, split, tail_only, true});
        }
    }
    return best;
}

}  // namespace

GemmConfig choose_config(const GemmDesc& desc, int num_sms, bool has_counters) {
    // Twenty microseconds of predictions for each of a model's hundred GEMMs would show in a step without a CUDA graph.
    using Problem = std::tuple<Precision, int64_t, int64_t, int64_t, int, bool>;
    constexpr size_t kRemembered = 1 << 16;
    thread_local std::map<Problem, GemmConfig> remembered;
    const Problem problem{desc.precision, desc.m, desc.n, desc.k, num_sms, has_counters};
    if (const auto found = remembered.find(problem); found != remembered.end()) return found->second;
    const TableRow* row = measured_row(desc, num_sms, has_counters);
    const GemmConfig config = row != nullptr ? row->config : predicted_best(desc, num_sms, has_counters);
    if (remembered.size() >= kRemembered) remembered.clear();
    return remembered.emplace(problem, config).first->second;
}

}  // namespace nestedfp::cuda
