// As much of CUDA C++ as the kernels of one block per token use, on the emulated grid. __shared__ is static: blocks run
// one after another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "grid.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __CUDA_ARCH__ 900

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3() = default;
    explicit dim3(unsigned x) : x(x) {}
};

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// threadIdx.x and its like, of the thread that reads them.
template <int (*Value)()>
struct Dimension {
    struct {
        operator unsigned() const { return static_cast<unsigned>(Value()); }
    } x;
};
inline const Dimension<emulator::thread_index> threadIdx{};
inline const Dimension<emulator::block_index> blockIdx{};
inline const Dimension<emulator::block_threads> blockDim{};

inline void __syncthreads() { emulator::sync_block(); }

struct Shuffle {
    uint32_t value, result;
    int lanes;
};

inline uint32_t shuffle_xor(uint32_t value, int lanes) {
    Shuffle mine{value, 0, lanes};
    emulator::together(&mine, [](void*(&all)[32]) {
        for (int lane = 0; lane < 32; ++lane) {
            auto* const to = static_cast<Shuffle*>(all[lane]);
            to->result = static_cast<Shuffle*>(all[lane ^ to->lanes])->value;
        }
    });
    return mine.result;
}

template <class T>
inline T __shfl_xor_sync(unsigned, T value, int lanes) {
    static_assert(sizeof(T) == 4);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = shuffle_xor(bits, lanes);
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
    uint32_t mine = value;
    emulator::together(&mine, [](void*(&all)[32]) {
        uint32_t largest = 0;
        for (void* const lane : all) largest = std::max(largest, *static_cast<uint32_t*>(lane));
        for (void* const lane : all) *static_cast<uint32_t*>(lane) = largest;
    });
    return mine;
}

// Of each half the larger, unsigned.
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
    return std::max(a & 0xffff0000u, b & 0xffff0000u) | std::max(a & 0xffffu, b & 0xffffu);
}

inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) d |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return d;
}

inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

using std::max;

// --- launches: one stream, in order ---

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
    emulator::run_grid(static_cast<int>(config->gridDim.x), static_cast<int>(config->blockDim.x),
                       static_cast<int>(config->dynamicSmemBytes), emulator::launch_seed(), [&] { kernel(args...); });
    return cudaSuccess;
}
