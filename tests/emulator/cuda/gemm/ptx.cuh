// The instructions of csrc/cuda/gemm/ptx.cuh on the emulated grid. What only the compiler or the registers see is
// nothing here.
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/half.h"
#include "cuda/device.h"
#include "cuda_runtime.h"
#include "hopper.h"

namespace nestedfp::cuda {

using std::fmaf;
using std::min;

inline uint32_t dynamic_shared() { return emulator::dynamic_shared(); }

inline void barrier_init(uint32_t barrier, int arrivals) { emulator::init_barrier(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) { emulator::arrive(barrier, 0); }
inline void barrier_arrive_peer(uint32_t barrier) { emulator::arrive(barrier, 0); }
inline void barrier_arrive_expect(uint32_t barrier, int bytes) { emulator::arrive(barrier, bytes); }
inline void barrier_wait(uint32_t barrier, int phase) { emulator::wait_for_parity(barrier, phase); }
inline void named_sync(int id, int threads) { emulator::sync_named(id, threads); }
inline void named_arrive(int id, int threads) { emulator::arrive_named(id, threads); }

inline void prefetch_tensor_map(const CUtensorMap*) {}

inline void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t) {
    emulator::load_box(to, *map, barrier, x, y, 1);
}

inline void load_box_5d(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t) {
    if (map->rank != 5) emulator::fail("a box of five dimensions of a map of others");
    emulator::load_box(to, *map, barrier, x, y, 1);
}

inline void load_box_multicast(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t) {
    emulator::load_box(to, *map, barrier, x, y, 2);
}

inline void load_bytes(uint32_t to, const void* from, uint32_t barrier, int bytes, uint64_t) {
    emulator::load_bytes(to, from, barrier, bytes);
}

template <class T>
inline T load_shared_as(uint32_t from) {
    T value;
    std::memcpy(&value, emulator::shared_at(from, sizeof(T)), sizeof(T));
    return value;
}

template <class T>
inline void store_shared_as(uint32_t to, T value) {
    std::memcpy(emulator::shared_at(to, sizeof(T)), &value, sizeof(T));
}

inline uint4 load_shared(uint32_t from) { return load_shared_as<uint4>(from); }
inline float4 load_shared_float4(uint32_t from) { return load_shared_as<float4>(from); }
inline float2 load_shared_float2(uint32_t from) { return load_shared_as<float2>(from); }
inline int load_shared_int(uint32_t from) { return load_shared_as<int>(from); }
inline void store_shared_float(uint32_t to, float v) { store_shared_as(to, v); }
inline void store_shared_float4(uint32_t to, float4 v) { store_shared_as(to, v); }
inline void store_shared_int(uint32_t to, int v) { store_shared_as(to, v); }
inline void store_peer_float4(uint32_t to, float4 v) { store_shared_as(to, v); }
inline void store_peer_int(uint32_t to, int v) { store_shared_as(to, v); }

struct StoreMatrices {
    uint8_t* row;
    uint32_t matrix[4];
};

inline void store_matrices_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    StoreMatrices mine{emulator::shared_at(to, 16), {a, b, c, d}};
    emulator::together(&mine, [](void*(&lanes)[32]) {
        for (int lane = 0; lane < 32; ++lane) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                const uint32_t pair = static_cast<StoreMatrices*>(lanes[lane])->matrix[matrix];
                for (int element = 0; element < 2; ++element) {
                    const auto half = static_cast<uint16_t>(pair >> 16 * element);
                    const int row = lane % 4 * 2 + element;  // of what is stored, and so a column of the fragment
                    std::memcpy(static_cast<StoreMatrices*>(lanes[8 * matrix + row])->row + lane / 4 * 2, &half, 2);
                }
            }
        }
    });
}

inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::end_warp_group(); }

template <int Pending>
inline void wgmma_wait() {
    emulator::wait_warp_groups(Pending);
}

template <int Count>
inline void pin(float (&)[Count]) {}
inline void pin(int&) {}

inline uint32_t descriptor_word(uint32_t address) { return 1u << 16 | (address & 0x3ffff) >> 4; }
inline uint64_t swizzled_descriptor(uint32_t word) { return uint64_t{0x40000040} << 32 | word; }
inline uint64_t swizzled64_descriptor(uint32_t word) { return uint64_t{0x80000020} << 32 | word; }

inline uint32_t opaque(uint32_t value) { return value; }

inline uint32_t uniform(uint32_t value) {
    uint32_t mine = value;
    emulator::together(&mine, [](void*(&lanes)[32]) {
        for (void* const lane : lanes) {
            if (*static_cast<uint32_t*>(lane) != *static_cast<uint32_t*>(lanes[0]))
                emulator::fail("a value that differs between the lanes of a warp is taken for uniform");
        }
    });
    return mine;
}

template <int Step, int RingBytes>
inline void advance_in_ring(uint32_t& position, int& parity, uint32_t end) {
    position += Step;
    if (position != end) return;
    position -= RingBytes;
    parity ^= 1;
}

inline uint32_t half2_bits(float low, float high) {
    cpu::Half l, h;
    cpu::from_float(low, &l);
    cpu::from_float(high, &h);
    return static_cast<uint32_t>(h.bits) << 16 | l.bits;
}

template <int Count>
inline void release_registers() {}
template <int Count>
inline void claim_registers() {}

inline uint32_t cluster_rank() { return static_cast<uint32_t>(emulator::block_index() % emulator::cluster_blocks()); }
inline void cluster_sync_relaxed() { emulator::sync_cluster(); }
inline void cluster_sync() { emulator::sync_cluster(); }
inline uint32_t peer_address(uint32_t address, uint32_t rank) {
    return emulator::address_in(address, static_cast<int>(rank));
}

inline int add_acquire_release(int* to, int value) {
    const int before = *to;
    *to += value;
    return before;
}
inline void add_release(int* to, int value) { *to += value; }

inline int load_acquire(const int* from) {
    emulator::poll();
    return *from;
}

inline void pdl_wait() { emulator::wait_before(); }
inline void pdl_launch_dependents() {}

// E4M3 by its definition in the PTX manual: to nearest, ties to even, saturating.
inline uint32_t to_code(float value) {
    if (std::isnan(value)) return 0x7f;
    const uint32_t sign = std::signbit(value) ? 0x80 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude >= 448) return sign | 0x7e;
    if (magnitude == 0) return sign;
    int exponent = 0;
    std::frexp(magnitude, &exponent);                    // magnitude = [0.5, 1) * 2^exponent
    const int last = exponent < -5 ? -9 : exponent - 4;  // of the last bit: subnormals share that of 2^-6
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -last)));
    // Normal numbers have 8 to 16 steps, the last of which is the next exponent's first.
    return sign | static_cast<uint32_t>(last == -9 ? steps : ((last + 9) << 3) + steps);
}

inline uint32_t to_codes(float low, float high) { return to_code(high) << 8 | to_code(low); }

}  // namespace nestedfp::cuda
