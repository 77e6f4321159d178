// The GEMM of a device: Hopper's own (cuda/gemm) on compute capability 9.0, the portable one (cuda/portable) on others
// from 8.0 on.
#pragma once

#include <cstdint>

#include "cuda/config/gemm.h"
#include "cuda/host/launch.h"
#include "cuda/portable/plan.h"

namespace nestedfp::cuda {

// What kernels need to know of a device.
struct GpuTraits {
    int num_sms;
    // Compute capability, 90 for 9.0.
    int capability;
    // The environment variable NESTEDFP_GPU_KERNELS is "portable": a Hopper then stands in for other GPUs.
    bool forced_portable;

    bool has_kernels() const { return capability >= 80; }
    bool is_portable() const { return capability != 90 || forced_portable; }
    // Tensor cores that multiply E4M3 by the kernels it runs. 10.x has such units, but not for mma.sync, which ptxas
    // there puts together from FP16 products, conversions and additions: FP16 activations by the FP8 weights take
    // fewer.
    bool has_fp8() const { return capability == 89 || capability == 90 || capability >= 120; }
    // Programmatic dependent launch, whose waits only Hopper's own code has: the PTX for others is of before it.
    bool has_pdl() const { return !is_portable(); }
};

// Of the device with this index; remembered by thread. Throws std::runtime_error for a device that does not answer, and
// for an unknown NESTEDFP_GPU_KERNELS.
const GpuTraits& gpu_traits(int device);

// Loads the GEMM's kernels of the current device, so that no later launch, perhaps under graph capture, has to. Returns
// a cudaError_t.
int prepare_gemm(const GpuTraits& gpu);

// One problem on one device: chosen once, then run.
class DeviceGemm {
  public:
    // is_fp8_mode: the weights are the upper plane alone; desc.precision says whether the activations are codes.
    DeviceGemm(const GemmDesc& desc, bool is_fp8_mode, const GpuTraits& gpu);

    int64_t workspace_bytes() const;
    // As run_gemm.
    int run(const GemmArgs& args, CUstream_st* stream, const char** message) const;

  private:
    const GemmDesc desc_;
    const GpuTraits& gpu_;
    const PortableOperands operands_;
    GemmConfig config_{};
    PortablePlan plan_{};
};

}  // namespace nestedfp::cuda
