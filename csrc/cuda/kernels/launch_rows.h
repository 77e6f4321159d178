// How kernels of one block per token are launched: how many columns a thread holds, and programmatic dependent launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

// A thread holds `chunks` chunks of 8 columns in registers between the two halves of the work. Sixteen take more
// registers than 1024 threads have.
constexpr int max_threads(int chunks) { return chunks > 8 ? 640 : 1024; }

// Calls launch(std::integral_constant<int, Chunks>, threads) for `chunks` chunks a token, at most 10,240.
template <class Launch>
cudaError_t choose_chunks(int64_t m, int64_t chunks, Launch&& launch) {
    const auto with = [&](auto per_thread) {
        return launch(per_thread, static_cast<int>(round_up((chunks + per_thread - 1) / per_thread, 32)));
    };
    // Many tokens: fewer threads each with more in flight, so that several blocks share a multiprocessor and one loads
    // while another stores. Few tokens: the latency of one block counts.
    if (m > 256) {
        if (chunks <= 1024) return with(std::integral_constant<int, 4>{});
        if (chunks <= 8192) return with(std::integral_constant<int, 8>{});
    }
    if (chunks <= 2048) return with(std::integral_constant<int, 2>{});
    if (chunks <= 4096) return with(std::integral_constant<int, 4>{});
    if (chunks <= 8192) return with(std::integral_constant<int, 8>{});
    return with(std::integral_constant<int, 16>{});
}

// One block of `threads` threads for each of m tokens. With pdl, which a GPU before Hopper cannot, the kernel may start
// while the one before it runs: it calls pdl_wait before it reads what that one writes.
template <class... Params, class... Args>
cudaError_t launch_rows(void (*kernel)(Params...), int64_t m, int threads, bool pdl, cudaStream_t stream,
                        Args... args) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(m));
    config.blockDim = dim3(threads);
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace nestedfp::cuda
