// Launches the portable GEMM (gemm.cuh) on a stream of the current device.
#pragma once

#include "cuda/host/launch.h"
#include "cuda/portable/plan.h"

namespace nestedfp::cuda {

// Loads every kernel that the current device can run, and allocates semaphores. Returns a cudaError_t.
int prepare_portable(bool has_fp8);

// As run_gemm: never synchronises, allocates nothing. args.x rows x_pitch elements apart, a multiple of 8, and aligned
// to 16 bytes. Returns a cudaError_t; on an error *message says what was wrong.
int run_portable(const GemmDesc& desc, PortableOperands operands, const PortablePlan& plan, const GemmArgs& args,
                 CUstream_st* stream, const char** message);

}  // namespace nestedfp::cuda
