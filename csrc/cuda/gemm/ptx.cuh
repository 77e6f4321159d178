// Hopper instructions that CUDA C++ has no name for, one thin wrapper each: mbarrier, TMA, wgmma control, clusters,
// programmatic dependent launch. Addresses are 32-bit shared-memory addresses.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/device.h"

namespace nestedfp::cuda {

NESTEDFP_DEVICE uint32_t dynamic_shared() {
    extern __shared__ uint8_t shared[];
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// --- mbarrier ---

NESTEDFP_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

NESTEDFP_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

NESTEDFP_DEVICE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At a barrier of another thread block of the cluster (peer_address). Not a release at the cluster's scope, which would
// wait for all of this thread's memory traffic: what the wgmmas have read needs none.
NESTEDFP_DEVICE void barrier_arrive_peer(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

NESTEDFP_DEVICE void barrier_arrive_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

NESTEDFP_DEVICE void barrier_wait(uint32_t barrier, int phase) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra out;\nbra again;\nout:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

// Barrier `id` of this thread block, among `threads` threads. 0 is __syncthreads.
NESTEDFP_DEVICE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

NESTEDFP_DEVICE void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- global to shared memory ---

NESTEDFP_DEVICE void prefetch_tensor_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

NESTEDFP_DEVICE void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
        : "memory");
}

// The same of a map of five dimensions, at the begin of the last three.
NESTEDFP_DEVICE void load_box_5d(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %6, %6, %6}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy), "r"(0)
        : "memory");
}

// Of two dimensions, multicast to both CTAs of a cluster of two: to the same place and the barrier of each.
NESTEDFP_DEVICE void load_box_multicast(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                                        uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %6, %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy), "h"(static_cast<uint16_t>(3))
        : "memory");
}

NESTEDFP_DEVICE void load_bytes(uint32_t to, const void* from, uint32_t barrier, int bytes, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %3, [%2], %4;" ::"r"(to),
        "l"(from), "r"(barrier), "r"(bytes), "l"(policy)
        : "memory");
}

// --- shared memory ---

NESTEDFP_DEVICE uint4 load_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

NESTEDFP_DEVICE float4 load_shared_float4(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

NESTEDFP_DEVICE float2 load_shared_float2(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

NESTEDFP_DEVICE void store_shared_float(uint32_t to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

NESTEDFP_DEVICE void store_shared_float4(uint32_t to, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

NESTEDFP_DEVICE void store_shared_int(uint32_t to, int v) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

NESTEDFP_DEVICE int load_shared_int(uint32_t from) {
    int v;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

// Four 8x8 matrices of 16-bit elements, transposed: lane i gives the address of row i % 8 of matrix i / 8.
NESTEDFP_DEVICE void store_matrices_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// --- wgmma ---

NESTEDFP_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
NESTEDFP_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Pending>
NESTEDFP_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Keeps the compiler from moving accumulator accesses across asynchronous wgmmas.
template <int Count>
NESTEDFP_DEVICE void pin(float (&values)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// The compiler cannot know what this value is.
NESTEDFP_DEVICE void pin(int& value) { asm volatile("" : "+r"(value)); }

// Descriptor of a K-major operand in 128-byte swizzled rows: 1024 bytes from one group of 8 rows to the next. The upper
// word is constant; the lower counts the address in units of 16 bytes and may be added to.
NESTEDFP_DEVICE uint32_t descriptor_word(uint32_t address) { return 1u << 16 | (address & 0x3ffff) >> 4; }
NESTEDFP_DEVICE uint64_t swizzled_descriptor(uint32_t word) { return uint64_t{0x40000040} << 32 | word; }
// The same for 64-byte swizzled rows: 512 bytes from one group of 8 rows to the next.
NESTEDFP_DEVICE uint64_t swizzled64_descriptor(uint32_t word) { return uint64_t{0x80000020} << 32 | word; }

// --- registers ---

// Returns `value`, in a register that the compiler cannot compute anew: short of registers it otherwise repeats the
// computation in the main loop. For whole warps.
NESTEDFP_DEVICE uint32_t opaque(uint32_t value) { return __shfl_sync(~0u, value, threadIdx.x % 32); }

// The next position in a ring that ends at `end`, and the parity that changes with every round. In C++ the wrap would
// be two selects and an exclusive or.
template <int Step, int RingBytes>
NESTEDFP_DEVICE void advance_in_ring(uint32_t& position, int& parity, uint32_t end) {
    asm volatile(
        "{\n.reg .pred wraps;\nadd.u32 %0, %0, %4;\nsetp.eq.u32 wraps, %0, %2;\n"
        "@wraps sub.u32 %0, %0, %3;\n@wraps xor.b32 %1, %1, 1;\n}"
        : "+r"(position), "+r"(parity)
        : "r"(end), "n"(RingBytes), "n"(Step));
}

// Two floats rounded to FP16.
NESTEDFP_DEVICE uint32_t half2_bits(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Two floats as E4M3 codes, that of `low` in the low byte.
NESTEDFP_DEVICE uint32_t to_codes(float low, float high) {
    uint16_t codes = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
#else
    __trap();  // never launched there: no E4M3 products either
#endif
    return codes;
}

// Returns `value`, which all lanes have in common, where the warp keeps it once: what is computed from it is, too.
NESTEDFP_DEVICE uint32_t uniform(uint32_t value) { return __reduce_or_sync(~0u, value); }

template <int Count>
NESTEDFP_DEVICE void release_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
NESTEDFP_DEVICE void claim_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// --- clusters ---

NESTEDFP_DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster, and for nothing that they have written.
NESTEDFP_DEVICE void cluster_sync_relaxed() {
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned;\n"
        "barrier.cluster.wait.aligned;" ::
            : "memory");
}

NESTEDFP_DEVICE void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// The address in the thread block `rank` of this cluster that corresponds to `address` here.
NESTEDFP_DEVICE uint32_t peer_address(uint32_t address, uint32_t rank) {
    uint32_t peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
    return peer;
}

NESTEDFP_DEVICE void store_peer_float4(uint32_t to, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

NESTEDFP_DEVICE void store_peer_int(uint32_t to, int v) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

// --- device memory ---

// Adds and returns what was there. Orders what this block wrote before, as seen through its barriers, and what it reads
// after.
NESTEDFP_DEVICE int add_acquire_release(int* to, int value) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(value) : "memory");
    return before;
}

// Adds, after what this block wrote before, as seen through its barriers.
NESTEDFP_DEVICE void add_release(int* to, int value) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Reads, before what this block reads after, as seen through its barriers.
NESTEDFP_DEVICE int load_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// --- programmatic dependent launch (PDL): a kernel starts while the one before it in the stream still runs, and waits
// for that one's results where it needs them. No-ops unless the launch asked for it, which it may do for code of 9.0
// alone (GpuTraits::has_pdl): what is compiled for older GPUs does not wait ---

// Returns once every kernel before this one in the stream has finished and its writes are visible.
NESTEDFP_DEVICE void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start as soon as there is room for it.
NESTEDFP_DEVICE void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace nestedfp::cuda
