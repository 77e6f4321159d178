#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

#include "cuda/host/launch.h"

namespace nestedfp::cuda {
namespace {

constexpr int kStreams = 64;  // per device; 8 KB each

struct Pool {
    int* semaphores = nullptr;
    std::map<cudaStream_t, int> slots;
};

std::mutex mutex;
std::map<int, Pool> pools;  // by device; lives as long as the process, as the device memory does

}  // namespace

int prepare_semaphores() {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    const std::lock_guard lock(mutex);
    Pool& pool = pools[device];
    if (pool.semaphores != nullptr) return cudaSuccess;
    constexpr size_t kBytes = sizeof(int) * kStreams * kSemaphores;
    void* memory = nullptr;
    error = cudaMalloc(&memory, kBytes);
    if (error == cudaSuccess) error = cudaMemset(memory, 0, kBytes);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();  // other streams do not wait for the memset
    if (error == cudaSuccess) pool.semaphores = static_cast<int*>(memory);
    return error;
}

int* stream_semaphores(cudaStream_t stream) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
    const std::lock_guard lock(mutex);
    Pool& pool = pools[device];
    if (pool.semaphores == nullptr) return nullptr;
    const auto found = pool.slots.find(stream);
    if (found != pool.slots.end()) return pool.semaphores + found->second * kSemaphores;
    const int slot = static_cast<int>(pool.slots.size());
    if (slot == kStreams) return nullptr;
    pool.slots.emplace(stream, slot);
    return pool.semaphores + slot * kSemaphores;
}

}  // namespace nestedfp::cuda
