// The choice of a config as C functions, host only: with gemm_config.cpp this makes a library that needs no CUDA, which
// the tests build with the C++ compiler alone.
#include "cuda/capi/capi.h"
#include "cuda/config/gemm_timings.h"
#include "cuda/config/stream_k.h"
#include "cuda/host/device_gemm.h"
#include "cuda/kernels/layout.h"
#include "cuda/portable/plan.h"

using namespace nestedfp::cuda;

NESTEDFP_API int64_t nestedfp_upper_pitch(int64_t k) { return upper_pitch(k); }
NESTEDFP_API int64_t nestedfp_lower_bytes(int64_t n, int64_t k) { return lower_bytes(n, k); }

NESTEDFP_API int nestedfp_tile_count() { return kTileCount; }

// fields[6]: precision, row warpgroups, K warpgroups, tokens, blocks per multiprocessor, multicast CTAs.
NESTEDFP_API void nestedfp_tile(int index, int* fields) {
    const Tile& tile = kTiles[index];
    fields[0] = static_cast<int>(tile.precision);
    fields[1] = tile.row_warpgroups;
    fields[2] = tile.k_warpgroups;
    fields[3] = tile.tokens;
    fields[4] = tile.blocks_per_sm;
    fields[5] = tile.multicast_ctas;
}

// config[4]: tile, split, tail_only, global_workspace.
NESTEDFP_API void nestedfp_choose(int precision, int64_t m, int64_t n, int64_t k, int num_sms, int* config) {
    const GemmConfig chosen = choose_config(make_desc(precision, m, n, k), num_sms);
    config[0] = chosen.tile;
    config[1] = chosen.split;
    config[2] = chosen.tail_only;
    config[3] = chosen.global_workspace;
}

// The predicted microseconds, or a negative number if the config is not valid for the problem.
NESTEDFP_API double nestedfp_predict(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config) {
    const GemmDesc desc = make_desc(precision, m, n, k);
    const GemmConfig wanted = make_config(config);
    return is_valid(desc, wanted, num_sms, nullptr) ? predict_us(desc, wanted, num_sms) : -1;
}

// Returns 0, or 1 if the config is not valid for the problem or the time not above zero.
NESTEDFP_API int nestedfp_take_timing(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                      double us) {
    const GemmDesc desc = make_desc(precision, m, n, k);
    const GemmConfig timed = make_config(config);
    if (!(us > 0) || !is_valid(desc, timed, num_sms, nullptr)) return 1;
    take_timing(desc, timed, num_sms, us);
    return 0;
}

NESTEDFP_API void nestedfp_forget_timings() { forget_timings(); }

NESTEDFP_API int nestedfp_mixed_tile_count() { return kMixedTileCount; }

// fields[4]: MixedTile's.
NESTEDFP_API void nestedfp_mixed_tile(int index, int* fields) {
    const MixedTile& tile = kMixedTiles[index];
    fields[0] = tile.exact, fields[1] = tile.fast, fields[2] = tile.rest_tokens, fields[3] = tile.multicast_ctas;
}

// Returns the bytes of workspace that a config of the mixed GEMM (make_mixed_config) needs, -1 if it is not valid.
NESTEDFP_API int64_t nestedfp_mixed_workspace(int64_t exact_rows, int64_t fast_rows, int64_t n, int64_t k, int num_sms,
                                              const int* config) {
    MixedPlan plan;
    const char* message = nullptr;
    if (!make_plan({exact_rows, fast_rows, n, k}, make_mixed_config(config), num_sms, &plan, &message)) return -1;
    return plan.mixed_workspace_bytes + plan.rest_workspace_bytes;
}

NESTEDFP_API void nestedfp_take_mixed(int64_t n, int64_t k, int64_t fast_rows, const int* config) {
    take_mixed(n, k, fast_rows, make_mixed_config(config));
}

NESTEDFP_API void nestedfp_forget_mixed() { forget_mixed(); }

// Returns 0 and the config that the mixed GEMM takes, or 1: two launches.
NESTEDFP_API int nestedfp_choose_mixed(int64_t exact_rows, int64_t fast_rows, int64_t n, int64_t k, int num_sms,
                                       int* config) {
    MixedConfig chosen{};
    if (!choose_mixed({exact_rows, fast_rows, n, k}, num_sms, &chosen)) return 1;
    config[0] = chosen.tile, config[1] = chosen.mixed_clusters;
    config[2] = chosen.mixed_split, config[3] = chosen.rest_split;
    return 0;
}

NESTEDFP_API int64_t nestedfp_workspace_bytes(int precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                              const int* config) {
    return workspace_bytes(make_desc(precision, m, n, k), make_config(config), num_sms);
}

// plan[11]: the fields of GemmPlan in order.
NESTEDFP_API void nestedfp_plan(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                int* plan) {
    const GemmPlan made = make_plan(make_desc(precision, m, n, k), make_config(config), num_sms);
    const int fields[] = {made.blocks,     made.row_tiles,   made.token_tiles,   made.raster_group,
                          made.tiles,      made.whole_tiles, made.cluster,       made.steps,
                          made.work_units, made.columns,     made.multicast_ctas};
    for (int i = 0; i < 11; ++i) plan[i] = fields[i];
}

// What a GPU of this compute capability (90 for 9.0) runs: traits[3]: whether it has kernels, portable ones, and E4M3
// products.
NESTEDFP_API void nestedfp_gpu_traits(int capability, int* traits) {
    const GpuTraits gpu{1, capability, false};
    traits[0] = gpu.has_kernels();
    traits[1] = gpu.is_portable();
    traits[2] = gpu.has_fp8();
}

// The portable GEMM's choice: plan[2]: tile, split.
NESTEDFP_API void nestedfp_portable_plan(int operands, int64_t m, int64_t n, int64_t k, int num_sms, int* plan) {
    const PortablePlan made = plan_portable(static_cast<PortableOperands>(operands), m, n, k, num_sms);
    plan[0] = made.tile;
    plan[1] = made.split;
}

NESTEDFP_API int64_t nestedfp_portable_workspace_bytes(int operands, int64_t m, int64_t n, int64_t k, int tile,
                                                       int split) {
    return portable_workspace_bytes(cut_portable(static_cast<PortableOperands>(operands), m, n, k, tile, split));
}

// What a block of the portable GEMM computes, with this tile and split: work[4]: row tile, token tile, first step, step
// after the last. Returns the number of blocks.
NESTEDFP_API int nestedfp_portable_work(int operands, int64_t m, int64_t n, int64_t k, int tile, int split, int block,
                                        int* work) {
    const PortablePlan plan = cut_portable(static_cast<PortableOperands>(operands), m, n, k, tile, split);
    const PortableWork found = portable_work(plan, block);
    const int fields[] = {found.row_tile, found.token_tile, found.first_step, found.last_step};
    for (int i = 0; i < 4; ++i) work[i] = fields[i];
    return plan.blocks();
}

// The parts that a block computes, in its order: fields[5 * i]: tile, first step, steps, index, count. Returns how
// many.
NESTEDFP_API int nestedfp_parts(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                int block, int* fields) {
    const GemmPlan plan = make_plan(make_desc(precision, m, n, k), make_config(config), num_sms);
    Part part;
    int count = 0;
    for (int position = kFirstPart; plan.work_units > 0 && next_part(plan, block, position, part); ++count) {
        const int values[] = {part.tile, part.first_step, part.steps, part.index, part.count};
        for (int i = 0; i < 5; ++i) fields[5 * count + i] = values[i];
    }
    return count;
}
