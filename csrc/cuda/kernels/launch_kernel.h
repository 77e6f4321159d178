// Launches through CUDA's runtime.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nestedfp::cuda {

// cluster: thread blocks of one; 1: none. pdl: programmatic dependent launch, for kernels that call pdl_wait; neither
// on a GPU before Hopper.
struct Launch {
    int64_t blocks;
    int threads;
    int64_t shared_bytes;
    int cluster;
    bool pdl;
    cudaStream_t stream;
};

template <class... Params, class... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), const Launch& launch, const Args&... args) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
    config.blockDim = dim3(static_cast<unsigned>(launch.threads));
    config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
    config.stream = launch.stream;
    cudaLaunchAttribute attributes[2]{};
    config.attrs = attributes;
    if (launch.pdl) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.cluster > 1) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(launch.cluster);
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace nestedfp::cuda
