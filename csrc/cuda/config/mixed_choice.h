// Which configs of the mixed GEMM are faster than two launches, as measured when an engine starts
// (nestedfp/kernels/mixed_tuning.py). Nothing is known of a shape that was not measured: two launches.
#pragma once

#include <cstdint>

#include "cuda/config/mixed.h"

namespace nestedfp::cuda {

// For weights [n, k] beside about `fast_rows` fast rows; config.tile < 0: two launches are faster there. Replaces what
// was said of the same numbers. Thread-safe.
void take_mixed(int64_t n, int64_t k, int64_t fast_rows, const MixedConfig& config);

void forget_mixed();

// The config of the nearest measured number of fast rows. False: two launches.
bool choose_mixed(const MixedDesc& desc, int num_sms, MixedConfig* config);

}  // namespace nestedfp::cuda
