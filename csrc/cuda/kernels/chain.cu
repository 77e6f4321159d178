#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "cuda/gemm/ptx.cuh"
#include "cuda/host/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch_rows.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

// Stands for the norm or activation before a GEMM: a block for each token, which reads its input once and writes x
// once.
__global__ void __launch_bounds__(256) write_input(const uint32_t* source, uint32_t* x, int words) {
    pdl_launch_dependents();
    pdl_wait();
    const int64_t row = static_cast<int64_t>(blockIdx.x) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) x[row + i] = source[row + i];
}

int launch_write_input(const GemmDesc& desc, const ChainArgs& args, cudaStream_t stream) {
    return launch_kernel(write_input, row_launch(desc.m, 0, 256, 0, true, stream),
                         static_cast<const uint32_t*>(args.source), static_cast<uint32_t*>(args.x),
                         static_cast<int>(desc.k / 2));
}

int launch_link(const GemmDesc& desc, const GemmConfig* config, const ChainArgs& args, int num_sms, int weight,
                cudaStream_t stream, const char** message) {
    int error = launch_write_input(desc, args, stream);
    if (error != cudaSuccess) return error;
    GemmArgs gemm{};
    gemm.x = args.x;
    gemm.x_pitch = desc.k;
    if (desc.precision == Precision::kFp8) {
        error = run_quantize(args.x, desc.k, args.codes, args.token_scale, desc.m, desc.k, true, stream);
        if (error != cudaSuccess) return error;
        gemm.x = args.codes;
        gemm.x_pitch = upper_pitch(desc.k);
        gemm.token_scale = args.token_scale;
    }
    if (config == nullptr) return cudaSuccess;
    gemm.upper = args.upper[weight];
    gemm.lower = args.lower[weight];
    gemm.out = args.out;
    gemm.workspace = args.workspace;
    gemm.semaphores = stream_semaphores(stream);
    return run_gemm(desc, *config, gemm, num_sms, stream, message);
}

template <class T, cudaError_t (*Destroy)(T)>
struct Destroyer {
    using pointer = T;
    void operator()(T handle) const { Destroy(handle); }
};
using Event = std::unique_ptr<cudaEvent_t, Destroyer<cudaEvent_t, cudaEventDestroy>>;
using Graph = std::unique_ptr<cudaGraph_t, Destroyer<cudaGraph_t, cudaGraphDestroy>>;
using GraphExec = std::unique_ptr<cudaGraphExec_t, Destroyer<cudaGraphExec_t, cudaGraphExecDestroy>>;

}  // namespace

int time_chain(const GemmDesc& desc, const GemmConfig* config, const ChainArgs& args, int num_sms, int links,
               int replays, cudaStream_t stream, float* us, const char** message) {
    *message = "";
    if (desc.k % 8 != 0) {
        *message = "K must be a multiple of 8";
        return cudaErrorInvalidValue;
    }
    int error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return error;
    for (int i = 0; i < links && error == cudaSuccess; ++i) {
        error = launch_link(desc, config, args, num_sms, i % args.weights, stream, message);
    }
    cudaGraph_t captured = nullptr;
    const int ended = cudaStreamEndCapture(stream, &captured);
    const Graph graph(captured);
    if (error != cudaSuccess) return error;
    if (ended != cudaSuccess) return ended;
    cudaGraphExec_t instance = nullptr;
    error = cudaGraphInstantiate(&instance, captured, 0);
    if (error != cudaSuccess) return error;
    const GraphExec owner(instance);

    std::vector<Event> events;
    for (int i = 0; i <= replays; ++i) {
        cudaEvent_t event = nullptr;
        error = cudaEventCreate(&event);
        if (error != cudaSuccess) return error;
        events.emplace_back(event);
    }
    error = cudaGraphLaunch(instance, stream);
    for (int i = 0; i <= replays && error == cudaSuccess; ++i) {
        error = cudaEventRecord(events[i].get(), stream);
        if (i < replays && error == cudaSuccess) error = cudaGraphLaunch(instance, stream);
    }
    if (error != cudaSuccess) return error;
    error = cudaStreamSynchronize(stream);
    for (int i = 0; i < replays && error == cudaSuccess; ++i) {
        error = cudaEventElapsedTime(&us[i], events[i].get(), events[i + 1].get());
        us[i] *= 1e3f / links;
    }
    return error;
}

}  // namespace nestedfp::cuda
