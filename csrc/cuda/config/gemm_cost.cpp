// The cost model: what a config of the GEMM takes, from constants fitted to timings of random problems.
#include <algorithm>
#include <cmath>

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {
namespace {

// Of one compiled tile, in clocks at 1.755 GHz.
struct TileCost {
    // One pipeline stage of a block, every multiprocessor full.
    double stage;
    // Filling and draining the pipeline and storing the result, once a tile.
    double drain;
    // A stage on an otherwise idle chip, as a fraction of `stage`.
    double alone;
    // Bytes per clock that a block takes in at most.
    double intake;
};

// Common constants. Arrays are by precision unless they say otherwise.
struct CostModel {
    // Once a GEMM.
    double launch_us[2];
    // Exponent that joins arithmetic and memory: large where the longer one hides the other.
    double overlap[2];
    // Bytes per clock of the whole chip.
    double memory[2];
    // Split-K in a cluster: clocks of the exchange, and its bytes per clock.
    double cluster_fixed;
    double cluster_bytes;
    // Split-K with a global workspace: clocks of the exchange, [1]: where the last block to arrive reduces; bytes per
    // clock.
    double workspace_fixed[2];
    double workspace_bytes;
    // Stages of work units that are at different columns of K take longer by this factor, [1]: where tiles are
    // multicast.
    double uneven[2];
    // More per megabyte of activations beyond what L2 holds beside the weights that stream by, [1]: where tiles are
    // multicast.
    double uneven_per_mb;
    double uneven_from_mb[2];
    // Fraction of the multiprocessors that clusters of four reach.
    double cluster_of_four;
    // The power cap: arithmetic takes this much longer where it alone bounds the time.
    double long_run[2];
};

constexpr double kClocksPerUs = 1755;

struct Measured {
    CostModel common;
    TileCost tiles[kTileCount];
};

constexpr Measured kMeasured = {
#include "cuda/generated/gemm_cost.inc"
};

constexpr bool has_every_tile() {
    for (const TileCost& cost : kMeasured.tiles) {
        if (!(cost.stage > 0)) return false;
    }
    return true;
}
static_assert(has_every_tile(), "gemm_cost.inc lacks constants of the last tiles");

}  // namespace

double predict_us(const GemmDesc& desc, const GemmConfig& config, int num_sms) {
    const CostModel& model = kMeasured.common;
    const TileCost& cost = kMeasured.tiles[config.tile];
    const Tile& tile = kTiles[config.tile];
    const GemmPlan plan = make_plan(desc, config, num_sms);
    const bool is_fp16 = desc.precision == Precision::kFp16;
    const int p = is_fp16 ? 0 : 1;
    const double slots = static_cast<double>(num_sms) * tile.blocks_per_sm / plan.multicast_ctas;
    const double sums_bytes = 4.0 * tile.rows() * tile.tokens;
    // A stage runs quicker while other multiprocessors are idle.
    const auto stage_at = [&](double blocks) {
        return cost.stage * (cost.alone + (1 - cost.alone) * std::min(1.0, blocks / slots));
    };

    // Clusters stay within a GPC, so of larger ones fewer run at once than there are multiprocessors; the rest then has
    // the chip to itself. Clocks of `blocks` that take `steps` stages and `once` more each.
    const double at_once = slots * (plan.cluster > 2 ? model.cluster_of_four : 1);
    const auto in_turns = [&](double blocks, double steps, double once) {
        const double turns = std::floor(blocks / at_once), rest = blocks - turns * at_once;
        return turns * (steps * stage_at(at_once) + once) + (rest > 0 ? steps * stage_at(rest) + once : 0);
    };

    const double full_waves = std::floor(plan.whole_tiles / slots);
    const double last_wave = plan.whole_tiles - full_waves * slots;
    double clocks = in_turns(slots, full_waves * plan.steps, full_waves * cost.drain);
    if (last_wave > 0) clocks += in_turns(last_wave, plan.steps, cost.drain);

    if (plan.work_units > 0) {
        const double unit = std::ceil(static_cast<double>(plan.column_steps) / int{plan.work_units});
        const double x_mb = 1e-6 * desc.m * desc.k * (is_fp16 ? 2 : 1);
        const double beyond_mb = std::max(0.0, x_mb - model.uneven_from_mb[plan.multicast_ctas > 1]);
        const double uneven = model.uneven[plan.multicast_ctas > 1] + std::min(0.5, model.uneven_per_mb * beyond_mb);
        // A block stores the sums of its first part and reduces those of its last tile.
        const double parts = config.split == kStreamK ? int{plan.steps} / unit + 1 : config.split;
        const double blocks = static_cast<double>(int{plan.work_units}) * int{plan.columns};
        const double drains = config.split == kStreamK ? std::max(1.0, unit / int{plan.steps}) : 1;
        clocks += unit * stage_at(blocks) * (config.split == kStreamK || plan.columns > 1 ? uneven : 1) +
                  drains * cost.drain + model.workspace_fixed[tile.tokens <= 64] +
                  parts * sums_bytes / model.workspace_bytes;
    } else if (config.split > 1) {
        const double blocks = 1.0 * (plan.tiles - plan.whole_tiles) * config.split;
        const double exchange = model.cluster_fixed + sums_bytes / model.cluster_bytes * (config.split == 2 ? 1 : 1.5);
        clocks += in_turns(blocks, std::ceil(1.0 * plan.steps / config.split), cost.drain + exchange);
    }

    const double bytes = is_fp16 ? 2 : 1;
    const double groups = std::ceil(int{plan.token_tiles} / static_cast<double>(int{plan.raster_group}));
    const double weight_bytes = groups * desc.n * desc.k * bytes, x_bytes = bytes * desc.m * desc.k;
    const double blocks = plan.blocks * plan.multicast_ctas;
    const double bandwidth = std::min(model.memory[p], blocks * cost.intake);
    const double memory = (weight_bytes + x_bytes + 2.0 * desc.m * desc.n) / bandwidth;
    const double together =
        std::pow(std::pow(clocks, model.overlap[p]) + std::pow(memory, model.overlap[p]), 1 / model.overlap[p]);
    const double bound_by_arithmetic = std::max(0.0, 1 - memory / clocks);
    return together * (1 + model.long_run[p] * bound_by_arithmetic) / kClocksPerUs + model.launch_us[p];
}

}  // namespace nestedfp::cuda
