// Which kernels a device runs: Hopper's own (cuda/gemm) on compute capability 9.0, the portable ones (cuda/portable) on
// others from 8.0 on.
#pragma once

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

}  // namespace nestedfp::cuda
