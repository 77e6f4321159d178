// Split-K with a global workspace: the blocks of a tile leave their sums there, and one of them adds them up.
#pragma once

#include "cuda/gemm/kernel_args.h"
#include "cuda/gemm/ptx.cuh"
#include "cuda/gemm/schedule.cuh"
#include "cuda/gemm/sums.cuh"

namespace nestedfp::cuda {

template <class T>
class WorkspaceParts {
  public:
    NESTEDFP_DEVICE WorkspaceParts(const KernelArgs& args, uint32_t stages, int row_warpgroup, int cta_rank)
        : args_(args), stages_(stages), row_warpgroup_(row_warpgroup), cta_rank_(cta_rank) {}

    // Adds partial sums in order of part, so that the result does not depend on timing. True if this block goes on with
    // the tile. The kernel before this one must have ended (pdl_wait).
    NESTEDFP_DEVICE bool reduce(float (&sum)[T::kAccumulators], const Work& work) {
        const int tile = (work.tile - args_.plan.whole_tiles) * T::kMulticastCtas + cta_rank_;
        int* const semaphore = args_.semaphores + tile * T::kRowWarpgroups + row_warpgroup_;
        if constexpr (T::kLastArriverReduces) {
            store_part(sum, work.part);
            if (!is_last_arrival(semaphore, work.parts)) return false;
            load_part(sum, work.part, 0);
        } else {
            if (work.part + 1 < work.parts) {
                store_part(sum, work.part);
                if (threadIdx.x % 128 == 0) add_release(semaphore, 1);
                return false;
            }
            wait_for_parts(semaphore, work.parts);
        }
        constexpr int kLoaded = T::kLastArriverReduces;
#pragma unroll 1
        for (int part = kLoaded; part < work.parts - 1 + kLoaded; ++part) add_part(sum, work.part, part);
        return true;
    }

  private:
    // This thread's first sum of a part of the tile of which this block computes the part `own`.
    NESTEDFP_DEVICE float4* part_address(int own, int part) const {
        const int block = scheduled_block<T::kMulticastCtas>(args_.plan) + (part - own) * args_.plan.columns;
        const int64_t slot = (block * T::kMulticastCtas + cta_rank_) * kSlotsPerBlock + (part == 0);
        float* const first = args_.workspace + (slot * T::kRowWarpgroups + row_warpgroup_) * (64 * T::kTokens);
        return reinterpret_cast<float4*>(first) + threadIdx.x % 128;
    }

    NESTEDFP_DEVICE void store_part(const float (&sum)[T::kAccumulators], int own) {
        float4* const to = part_address(own, own);
#pragma unroll
        for (int i = 0; i < T::kTokens / 8; ++i) __stcg(to + i * 128, group(sum, i));
        named_sync(1 + row_warpgroup_, 128);
    }

    NESTEDFP_DEVICE void load_part(float (&sum)[T::kAccumulators], int own, int part) {
        const float4* const from = part_address(own, part);
#pragma unroll
        for (int i = 0; i < T::kTokens / 8; ++i) {
            const float4 v = __ldcg(from + i * 128);
            sum[4 * i] = v.x, sum[4 * i + 1] = v.y, sum[4 * i + 2] = v.z, sum[4 * i + 3] = v.w;
        }
    }

    NESTEDFP_DEVICE void add_part(float (&sum)[T::kAccumulators], int own, int part) {
        const float4* const from = part_address(own, part);
#pragma unroll
        for (int i = 0; i < T::kTokens / 8; ++i) add_group(sum, i, __ldcg(from + i * 128));
    }

    NESTEDFP_DEVICE bool is_last_arrival(int* semaphore, int parts) {
        const uint32_t flag = stages_ + T::kLastPartFlag + row_warpgroup_ * 4;
        if (threadIdx.x % 128 == 0) {
            const bool is_last = add_acquire_release(semaphore, 1) == parts - 1;
            if (is_last) *semaphore = 0;
            store_shared_int(flag, is_last);
        }
        named_sync(1 + row_warpgroup_, 128);
        return load_shared_int(flag) != 0;
    }

    NESTEDFP_DEVICE void wait_for_parts(int* semaphore, int parts) {
        if (threadIdx.x % 128 == 0) {
            while (load_acquire(semaphore) != parts - 1) {
            }
            *semaphore = 0;
        }
        named_sync(1 + row_warpgroup_, 128);
    }

    const KernelArgs& args_;
    uint32_t stages_;
    int row_warpgroup_, cta_rank_;
};

}  // namespace nestedfp::cuda
