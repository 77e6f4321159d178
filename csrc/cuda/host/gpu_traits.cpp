#include "cuda/host/gpu_traits.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "cuda/host/launch.h"
#include "cuda/portable/launch.h"

namespace nestedfp::cuda {
namespace {

bool is_forced_portable() {
    const char* const wanted = std::getenv("NESTEDFP_GPU_KERNELS");
    if (wanted == nullptr || std::string(wanted) == "auto") return false;
    if (std::string(wanted) == "portable") return true;
    throw std::runtime_error("NESTEDFP_GPU_KERNELS: expected auto or portable, got '" + std::string(wanted) + "'");
}

}  // namespace

const GpuTraits& gpu_traits(int device) {
    thread_local std::map<int, GpuTraits> known;
    const auto found = known.find(device);
    if (found != known.end()) return found->second;
    const auto attribute = [&](cudaDeviceAttr which) {
        int value = 0;
        const cudaError_t error = cudaDeviceGetAttribute(&value, which, device);
        if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA device: ") + cudaGetErrorString(error));
        return value;
    };
    const int num_sms = attribute(cudaDevAttrMultiProcessorCount);
    const int major = attribute(cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor);
    return known.emplace(device, GpuTraits{num_sms, 10 * major + minor, is_forced_portable()}).first->second;
}

int prepare_gemm(const GpuTraits& gpu) {
    return gpu.is_portable() ? prepare_portable(gpu.has_fp8()) : prepare_device();
}

}  // namespace nestedfp::cuda
