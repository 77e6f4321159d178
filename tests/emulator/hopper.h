// Hopper's asynchronous instructions by their definition in the PTX manual, on the emulated grid: mbarrier, TMA and
// wgmma. Addresses are 32-bit shared-memory addresses; those of another block of the cluster carry its rank.
//
// What TMA writes is NaN from the start of a load to its end, and a wgmma reads its operands, registers included, at
// some time until it is waited for.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace emulator {

uint32_t dynamic_shared();
uint32_t address_in(uint32_t address, int rank);
// Of `bytes` bytes, aligned to as many up to 16.
uint8_t* shared_at(uint32_t address, int bytes);

void init_barrier(uint32_t barrier, int arrivals);
void arrive(uint32_t barrier, int expected_bytes);
void wait_for_parity(uint32_t barrier, int parity);

// `to` and `barrier` in this block, and with two blocks at the same addresses of both blocks of the cluster.
void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row, int blocks);
void load_bytes(uint32_t to, const void* from, uint32_t barrier, int bytes);

// m64nNk16 and m64nNk32, D in the layout of the manual, operands in shared memory K-major in 128-byte swizzled rows.
void multiply_half(float* d, int tokens, const uint32_t* a, uint64_t b, bool is_added);
void multiply_e4m3(float* d, int tokens, uint64_t a, uint64_t b, bool is_added);

}  // namespace emulator
