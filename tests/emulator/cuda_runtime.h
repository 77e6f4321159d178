// As much of CUDA C++ as the kernels use, on the emulated grid. __shared__ is static: launches run their blocks one
// after another.
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
#define __grid_constant__
#define __shared__ static
#define __CUDA_ARCH__ 900

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3() = default;
    explicit dim3(unsigned x) : x(x) {}
};

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Past the L1 cache, which is none here.
template <class T>
inline T __ldcg(const T* from) {
    return *from;
}
template <class T>
inline void __stcg(T* to, T value) {
    *to = value;
}

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

inline void __syncwarp() {
    emulator::together(nullptr, [](void*(&)[32]) {});
}

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
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline float __uint_as_float(uint32_t bits) { return __int_as_float(static_cast<int>(bits)); }

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

using std::max;
using std::min;

// --- the host's side: one device, one stream, everything in order ---

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
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
    emulator::Launch launch = emulator::launch_defaults();
    launch.blocks = static_cast<int>(config->gridDim.x);
    launch.threads = static_cast<int>(config->blockDim.x);
    launch.shared_bytes = static_cast<int>(config->dynamicSmemBytes);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            launch.cluster = static_cast<int>(config->attrs[i].val.clusterDim.x);
    }
    emulator::run_grid(launch, [&] { kernel(args...); });
    return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "invalid value"; }

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

// 227 KiB, of an H100.
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int bytes) {
    return bytes <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
    *memory = operator new(bytes);
    return cudaSuccess;
}

inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
    std::memset(memory, value, bytes);
    return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
