#include "cuda/host/device_gemm.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "cuda/portable/launch.h"

namespace nestedfp::cuda {
namespace {

bool is_forced_portable() {
    const char* const wanted = std::getenv("NESTEDFP_GPU_KERNELS");
    if (wanted == nullptr || std::string(wanted) == "auto") return false;
    if (std::string(wanted) == "portable") return true;
    throw std::runtime_error("NESTEDFP_GPU_KERNELS: expected auto or portable, got '" + std::string(wanted) + "'");
}

PortableOperands operands_of(const GemmDesc& desc, bool is_fp8_mode) {
    if (!is_fp8_mode) return PortableOperands::kExact;
    return desc.precision == Precision::kFp8 ? PortableOperands::kFp8 : PortableOperands::kUpperFp16;
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

DeviceGemm::DeviceGemm(const GemmDesc& desc, bool is_fp8_mode, const GpuTraits& gpu)
    : desc_(desc), gpu_(gpu), operands_(operands_of(desc, is_fp8_mode)) {
    if (gpu.is_portable()) {
        plan_ = plan_portable(operands_, desc.m, desc.n, desc.k, gpu.num_sms);
    } else {
        config_ = choose_config(desc, gpu.num_sms);
    }
}

int64_t DeviceGemm::workspace_bytes() const {
    return gpu_.is_portable() ? portable_workspace_bytes(plan_)
                              : nestedfp::cuda::workspace_bytes(desc_, config_, gpu_.num_sms);
}

int DeviceGemm::run(const GemmArgs& args, CUstream_st* stream, const char** message) const {
    return gpu_.is_portable() ? run_portable(desc_, operands_, plan_, args, stream, message)
                              : run_gemm(desc_, config_, args, gpu_.num_sms, stream, message);
}

}  // namespace nestedfp::cuda
