// The instructions that the portable GEMM is made of, one thin wrapper each, for compute capability 8.0 and newer. All
// that its code asks of a GPU is here, so that another header of this name can run it elsewhere (tests/emulator).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

NESTEDFP_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
NESTEDFP_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
NESTEDFP_DEVICE void sync_block() { __syncthreads(); }

NESTEDFP_DEVICE uint8_t* dynamic_shared() {
    extern __shared__ __align__(128) uint8_t portable_shared[];
    return portable_shared;
}

NESTEDFP_DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// Two FP16 numbers, `low` in the lower half.
NESTEDFP_DEVICE uint32_t to_halves(float low, float high) {
    const __half2 halves = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&halves);
}

// Copies 16 bytes to shared memory behind the thread's back, the first `bytes` (0 to 16) from global memory and the
// rest zeros. Done once cp_async_wait says so, and seen by others after a sync_block behind that.
NESTEDFP_DEVICE void cp_async(void* shared, const void* global, int bytes) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

// Ends a group of this thread's copies.
NESTEDFP_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all of this thread's groups but the last `Pending` are done.
template <int Pending>
NESTEDFP_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

NESTEDFP_DEVICE uint4 load_shared(const void* shared) { return *static_cast<const uint4*>(shared); }

// Four 8 x 8 matrices of 16 bits, whose rows the lanes name: lane 8 * i + r row r of matrix i. Of matrix i, lane l gets
// columns 2 * (l % 4) and the next of row l / 4.
NESTEDFP_DEVICE void load_matrices(uint32_t (&to)[4], const void* shared_row) {
    const auto row = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// Of an 8 x 8 matrix of 16 bits that the lanes hold as load_matrices gives it, the transpose.
NESTEDFP_DEVICE uint32_t transpose(uint32_t matrix) {
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(matrix));
    return d;
}

// d[16 x 8] += a[16 x 16] * b[16 x 8], FP16 operands and FP32 sums; PTX's fragments of mma.m16n8k16.
NESTEDFP_DEVICE void multiply_fp16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16 x 8] += a[16 x 32] * b[32 x 8], E4M3 operands and FP32 sums; PTX's fragments of mma.m16n8k32.
NESTEDFP_DEVICE void multiply_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();  // never launched there
#endif
}

// Past L1, which may hold what another thread block has since written.
NESTEDFP_DEVICE float load_fresh(const float* global) { return __ldcg(global); }

// Adds one and returns what was there. What this thread, and those it has met at a barrier of the block, wrote before
// is seen by whoever counts after it, and by those that meet that thread at a barrier.
NESTEDFP_DEVICE int count_up(int* global) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(global) : "memory");
    return before;
}

}  // namespace nestedfp::cuda
