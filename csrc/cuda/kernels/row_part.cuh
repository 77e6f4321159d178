// A row of activations shared out over the blocks of a cluster: who has which columns, and what they tell each other.
//
// A thread holds `Chunks` chunks of 8 columns: those of number first + i * blockDim.x + threadIdx.x, before `end`.
// Parts begin at multiples of 32 chunks and the number of threads is a multiple of 32, so every shuffle is complete:
// chunks beyond the end are zeros that are not stored.
#pragma once

#include <cstdint>

#include "cuda/gemm/ptx.cuh"
#include "cuda/kernels/launch_rows.h"

namespace nestedfp::cuda {

// The places of exchanges in shared memory, each of kExchangeBytes.
inline constexpr int kMaximumSlots = 0, kSumSlots = 1;

struct RowPart {
    int row, first, end, parts;

    // parts_log2: of the blocks of a row. chunks: of a row.
    NESTEDFP_DEVICE RowPart(int parts_log2, int chunks) : parts(1 << parts_log2) {
        const int block = static_cast<int>(blockIdx.x), size = part_chunks(chunks, parts_log2);
        row = block >> parts_log2;
        first = (block & (parts - 1)) * size;
        end = min(first + size, chunks);
    }

    NESTEDFP_DEVICE int chunk(int i) const {
        return first + i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    }

    // Before the first exchange: a block's shared memory may be written once it runs.
    NESTEDFP_DEVICE void await_others() const {
#if __CUDA_ARCH__ >= 900
        if (parts > 1) cluster_sync_relaxed();
#endif
    }

    // Hands `value`, one for each warp, to all blocks of the row, and returns how many there are in all. For one
    // exchange through these slots.
    NESTEDFP_DEVICE int exchange(int slots, uint32_t value) const {
        const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
#if __CUDA_ARCH__ >= 900
        if (parts > 1) {
            const uint32_t mine = slot(slots, static_cast<int>(cluster_rank()) * warps + warp);
            if (lane < parts) store_peer_int(peer_address(mine, lane), static_cast<int>(value));
            cluster_sync();
            return parts * warps;
        }
#endif
        if (lane == 0) store_shared_int(slot(slots, warp), static_cast<int>(value));
        __syncthreads();
        return warps;
    }

    // The value of number i: blocks in order, their warps in order.
    NESTEDFP_DEVICE uint32_t exchanged(int slots, int i) const {
        return static_cast<uint32_t>(load_shared_int(slot(slots, i)));
    }

  private:
    NESTEDFP_DEVICE static uint32_t slot(int slots, int i) {
        return dynamic_shared() + static_cast<uint32_t>(slots * kExchangeBytes + 4 * i);
    }
};

}  // namespace nestedfp::cuda
