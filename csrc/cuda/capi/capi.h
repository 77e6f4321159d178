// What both parts of the C interface share.
#pragma once

#include <cstdint>

#include "cuda/config/gemm.h"
#include "cuda/config/mixed.h"

#define NESTEDFP_API extern "C" __attribute__((visibility("default")))

namespace nestedfp::cuda {

inline GemmDesc make_desc(int precision, int64_t m, int64_t n, int64_t k) {
    return {static_cast<Precision>(precision), m, n, k};
}

// config[4]: tile, split, tail_only, global_workspace.
inline GemmConfig make_config(const int* config) { return {config[0], config[1], config[2] != 0, config[3] != 0}; }

// config[4]: tile, mixed blocks, split of the mixed tiles, of the rest (cuda/config/mixed.h).
inline MixedConfig make_mixed_config(const int* config) { return {config[0], config[1], config[2], config[3]}; }

}  // namespace nestedfp::cuda
