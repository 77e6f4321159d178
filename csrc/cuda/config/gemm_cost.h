// The cost model: what a config of the GEMM takes, from constants fitted to timings of random problems.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// Of one compiled tile, in clocks at 1.755 GHz.
struct TileCost {
    double stage;   // one pipeline stage of a block, every multiprocessor full
    double drain;   // filling and draining the pipeline and storing the result, once a tile
    double alone;   // a stage on an otherwise idle chip, as a share of `stage`
    double intake;  // bytes per clock that a block takes in at most
};

// Common constants. Arrays are by precision.
struct CostModel {
    double launch_us[2];       // once a GEMM
    double overlap[2];         // exponent that joins arithmetic and memory: large where the longer one hides the other
    double memory[2];          // bytes per clock of the whole chip
    double cluster_fixed;      // clocks of the exchange within a cluster
    double cluster_bytes;      // its bytes per clock
    double share_fixed[2];     // clocks of the exchange through device memory, [1]: where the last block collects
    double share_bytes;        // its bytes per clock
    double uneven[2];          // stages of shares at different columns, times longer; [1]: in pairs
    double uneven_per_mb;      // more per megabyte of activations beyond
    double uneven_from_mb[2];  // what L2 holds beside the weights that stream by
    double cluster_of_four;    // share of the multiprocessors that clusters of four reach
    double long_run[2];        // the power cap: arithmetic this much longer where it alone bounds the time
};

inline constexpr int kTileConstants = sizeof(TileCost) / sizeof(double);
inline constexpr int kCommonConstants = sizeof(CostModel) / sizeof(double);

extern const CostModel kCostModel;
const TileCost& tile_cost(int tile);

// Microseconds of a GEMM; needs is_valid. `tile`: the config's.
double predict_us(const GemmDesc& desc, const GemmConfig& config, int num_sms, const CostModel& model,
                  const TileCost& tile);

}  // namespace nestedfp::cuda
