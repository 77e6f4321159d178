// The instructions of csrc/cuda/portable/ptx.cuh by their definition in the PTX manual, on the emulated grid.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/half.h"
#include "cuda/device.h"
#include "cuda_runtime.h"
#include "number.h"

namespace nestedfp::cuda {

using std::fmaf;

inline int thread_index() { return emulator::thread_index(); }
inline int block_index() { return emulator::block_index(); }
inline void sync_block() { emulator::sync_block(); }
inline uint8_t* dynamic_shared() { return emulator::shared_memory(); }

inline float half_to_float(uint16_t bits) { return cpu::to_float(cpu::Half{bits}); }

inline uint32_t to_halves(float low, float high) {
    cpu::Half l, h;
    cpu::from_float(low, &l);
    cpu::from_float(high, &h);
    return static_cast<uint32_t>(h.bits) << 16 | l.bits;
}

inline void cp_async(void* shared, const void* global, int bytes) { emulator::start_copy(shared, global, bytes); }
inline void cp_async_commit() { emulator::end_group(); }

template <int Pending>
inline void cp_async_wait() {
    emulator::wait_copies(Pending);
}

inline uint4 load_shared(const void* shared) {
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) emulator::fail("a load of 16 bytes from an odd address");
    return *static_cast<const uint4*>(shared);
}

struct LoadMatrices {
    const uint8_t* row;
    uint32_t* to;
};

inline void load_matrices(uint32_t (&to)[4], const void* shared_row) {
    if (reinterpret_cast<uintptr_t>(shared_row) % 16 != 0) emulator::fail("ldmatrix from an odd address");
    LoadMatrices mine{static_cast<const uint8_t*>(shared_row), to};
    emulator::together(&mine, [](void*(&lanes)[32]) {
        for (int lane = 0; lane < 32; ++lane) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                const auto* const source = static_cast<const LoadMatrices*>(lanes[8 * matrix + lane / 4]);
                std::memcpy(&static_cast<LoadMatrices*>(lanes[lane])->to[matrix], source->row + lane % 4 * 4, 4);
            }
        }
    });
}

inline uint32_t transpose(uint32_t matrix) {
    uint32_t mine = matrix;
    emulator::together(&mine, [](void*(&lanes)[32]) {
        uint16_t elements[8][8];
        for (int lane = 0; lane < 32; ++lane) std::memcpy(&elements[lane / 4][lane % 4 * 2], lanes[lane], 4);
        for (int lane = 0; lane < 32; ++lane) {
            const uint16_t pair[2] = {elements[lane % 4 * 2][lane / 4], elements[lane % 4 * 2 + 1][lane / 4]};
            std::memcpy(lanes[lane], pair, 4);
        }
    });
    return mine;
}

struct Multiply {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
};

// Fragments of mma.m16n8: a lane's registers of A are rows g and g + 8, g = lane / 4, of the first half of k and then
// of the second; Bytes each element has.
template <int Bytes, float (*ToFloat)(const uint8_t*)>
inline void multiply_warp(void* (&lanes)[32]) {
    constexpr int kPerWord = 4 / Bytes, kDepth = 8 * kPerWord;
    float a[16][kDepth], b[kDepth][8];
    const auto lane_of = [&](int lane) { return static_cast<Multiply*>(lanes[lane]); };
    for (int lane = 0; lane < 32; ++lane) {
        const Multiply* const mine = lane_of(lane);
        for (int half = 0; half < 2; ++half) {
            for (int e = 0; e < kPerWord; ++e) {
                const int k = half * kDepth / 2 + lane % 4 * kPerWord + e;
                for (int lower = 0; lower < 2; ++lower) {
                    const auto* const word = reinterpret_cast<const uint8_t*>(&mine->a[2 * half + lower]);
                    a[lane / 4 + 8 * lower][k] = ToFloat(word + e * Bytes);
                }
                b[k][lane / 4] = ToFloat(reinterpret_cast<const uint8_t*>(&mine->b[half]) + e * Bytes);
            }
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
            double sum = lane_of(lane)->d[i];
            for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[k][col];
            lane_of(lane)->d[i] = static_cast<float>(sum);
        }
    }
}

inline float half_at(const uint8_t* bytes) {
    uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return half_to_float(bits);
}

inline float e4m3_at(const uint8_t* byte) { return emulator::e4m3_to_float(*byte); }

inline void multiply_fp16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    Multiply mine{d, a, {b0, b1}};
    emulator::together(&mine, multiply_warp<2, half_at>);
}

inline void multiply_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    Multiply mine{d, a, {b0, b1}};
    emulator::together(&mine, multiply_warp<1, e4m3_at>);
}

inline float load_fresh(const float* global) { return *global; }

inline int count_up(int* global) { return (*global)++; }

}  // namespace nestedfp::cuda
