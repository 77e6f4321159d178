// What tests ask of the plans beside the C functions of csrc/cuda/capi; built into their library (gemm_library.py).
#include "cuda/capi/capi.h"
#include "cuda/config/gemm.h"
#include "cuda/config/stream_k.h"
#include "cuda/host/gpu_traits.h"
#include "cuda/portable/plan.h"

using namespace nestedfp::cuda;
using nestedfp::Precision;

// plan[11]: the fields of GemmPlan that gemm_plans.py names, in its order.
NESTEDFP_API void nestedfp_plan(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                const GemmConfig* config, int* plan) {
    const GemmPlan made = make_plan({precision, m, n, k}, *config, num_sms);
    const int fields[] = {made.blocks,     made.row_tiles,   made.token_tiles,   made.raster_group,
                          made.tiles,      made.whole_tiles, made.cluster,       made.steps,
                          made.work_units, made.columns,     made.multicast_ctas};
    for (int i = 0; i < 11; ++i) plan[i] = fields[i];
}

// The parts that a block computes, in its order: fields[5 * i]: tile, first step, steps, index, count. Returns how
// many.
NESTEDFP_API int nestedfp_parts(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                const GemmConfig* config, int block, int* fields) {
    const GemmPlan plan = make_plan({precision, m, n, k}, *config, num_sms);
    Part part;
    int count = 0;
    for (int position = kFirstPart; plan.work_units > 0 && next_part(plan, block, position, part); ++count) {
        const int values[] = {part.tile, part.first_step, part.steps, part.index, part.count};
        for (int i = 0; i < 5; ++i) fields[5 * count + i] = values[i];
    }
    return count;
}

// What a GPU of this compute capability (90 for 9.0) runs: traits[3]: whether it has kernels, portable ones, and E4M3
// products.
NESTEDFP_API void nestedfp_gpu_traits(int capability, int* traits) {
    const GpuTraits gpu{1, capability, false};
    traits[0] = gpu.has_kernels();
    traits[1] = gpu.is_portable();
    traits[2] = gpu.has_fp8();
}

// What a block of the portable GEMM computes, with this tile and split: work[4]: row tile, token tile, first step, step
// after the last. Returns the number of blocks.
NESTEDFP_API int nestedfp_portable_work(PortableOperands operands, int64_t m, int64_t n, int64_t k, int tile, int split,
                                        int block, int* work) {
    const PortablePlan plan = cut_portable(operands, m, n, k, tile, split);
    const PortableWork found = portable_work(plan, block);
    const int fields[] = {found.row_tile, found.token_tile, found.first_step, found.last_step};
    for (int i = 0; i < 4; ++i) work[i] = fields[i];
    return plan.blocks();
}
