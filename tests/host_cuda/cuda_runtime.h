// In place of CUDA's header: a thread for each thread of a block, one block after the other. Shuffles and reductions meet at a
// barrier of their warp, so a warp that does not shuffle together hangs or fails here, too.
#pragma once

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_fp16.h"

#define __global__
#define __launch_bounds__(threads)
#define __shared__ static  // blocks do not overlap

struct CUstream_st;
using cudaStream_t = CUstream_st*;
using cudaError_t = int;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum { cudaLaunchAttributeProgrammaticStreamSerialization };

struct dim3 {
    unsigned x;
    dim3(unsigned value = 0) : x(value) {}
};
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    int numAttrs;
};

struct Warp {
    std::barrier<> barrier{32};
    uint32_t words[32];
};

inline thread_local dim3 threadIdx, blockIdx, blockDim;
inline thread_local Warp* this_warp;
inline thread_local std::barrier<>* this_block;

inline void __syncthreads() { this_block->arrive_and_wait(); }

template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
    static_assert(sizeof(T) == sizeof(uint32_t));
    const int lane = threadIdx.x % 32;
    std::memcpy(&this_warp->words[lane], &value, sizeof(value));
    this_warp->barrier.arrive_and_wait();
    std::memcpy(&value, &this_warp->words[lane ^ mask], sizeof(value));
    this_warp->barrier.arrive_and_wait();
    return value;
}

inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
    for (int lane = 16; lane > 0; lane /= 2) value = max(value, __shfl_xor_sync(mask, value, lane));
    return value;
}

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args... args) {
    const unsigned threads = config->blockDim.x;
    std::barrier<> block(threads);
    std::vector<std::unique_ptr<Warp>> warps;
    for (unsigned i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<Warp>());
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; ++i) {
        running.emplace_back([&, i] {
            threadIdx = i, blockDim = threads;
            this_warp = warps[i / 32].get(), this_block = &block;
            for (unsigned j = 0; j < config->gridDim.x; ++j) {
                blockIdx = j;
                kernel(args...);
                block.arrive_and_wait();
            }
        });
    }
    for (std::thread& thread : running) thread.join();
    return cudaSuccess;
}
