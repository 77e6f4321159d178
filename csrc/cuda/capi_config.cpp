// The choice of a config as C functions, host only: with gemm_config.cpp this makes a library that needs no CUDA, which
// the tests build with the C++ compiler alone.
#include "capi.h"

using namespace nestedfp::cuda;

NESTEDFP_API int nestedfp_tile_count() { return tile_count(); }

// fields[5]: precision, row warpgroups, K warpgroups, tokens, blocks per multiprocessor.
NESTEDFP_API void nestedfp_tile(int index, int* fields) {
    const Tile& tile = tile_at(index);
    fields[0] = static_cast<int>(tile.precision);
    fields[1] = tile.row_warpgroups;
    fields[2] = tile.k_warpgroups;
    fields[3] = tile.tokens;
    fields[4] = tile.blocks_per_sm;
}

// config[4]: tile, split, tail_only, through_memory.
NESTEDFP_API void nestedfp_choose(int precision, int64_t m, int64_t n, int64_t k, int num_sms, int* config) {
    const GemmConfig chosen = choose_config(make_desc(precision, m, n, k), num_sms, true);
    config[0] = chosen.tile;
    config[1] = chosen.split;
    config[2] = chosen.tail_only;
    config[3] = chosen.through_memory;
}

// The predicted microseconds, or a negative number if the config is not valid for the problem.
NESTEDFP_API double nestedfp_predict(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config) {
    const GemmDesc desc = make_desc(precision, m, n, k);
    const GemmConfig wanted = make_config(config);
    return is_valid(desc, wanted, num_sms, nullptr) ? predict_us(desc, wanted, num_sms) : -1;
}

NESTEDFP_API int64_t nestedfp_partial_sum_bytes(int precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                                const int* config) {
    return partial_sum_bytes(make_desc(precision, m, n, k), make_config(config), num_sms);
}

// plan[9]: the fields of GemmPlan in order.
NESTEDFP_API void nestedfp_plan(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                int* plan) {
    const GemmPlan made = make_plan(make_desc(precision, m, n, k), make_config(config), num_sms);
    const int fields[] = {made.blocks,      made.row_tiles, made.token_tiles, made.group, made.tiles,
                          made.whole_tiles, made.cluster,   made.parts,       made.steps};
    for (int i = 0; i < 9; ++i) plan[i] = fields[i];
}
