// The cost model: what a config of the GEMM takes, from constants fitted to timings of random problems.
#pragma once

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

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

}  // namespace nestedfp::cuda
