// Of csrc/cuda/gemm/ptx.cuh what kernels outside the Hopper GEMM use: launches are in order here, so there is nothing
// to wait for.
#pragma once

#include "cuda/device.h"

namespace nestedfp::cuda {

inline void pdl_wait() {}
inline void pdl_launch_dependents() {}

}  // namespace nestedfp::cuda
