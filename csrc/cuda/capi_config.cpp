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

// config[3]: tile, split, tail_only.
NESTEDFP_API void nestedfp_choose(int precision, int64_t m, int64_t n, int64_t k, int num_sms, int* config) {
    const GemmConfig chosen = choose_config(make_desc(precision, m, n, k), num_sms);
    config[0] = chosen.tile;
    config[1] = chosen.split;
    config[2] = chosen.tail_only;
}

// The predicted microseconds, or a negative number if the config is not valid for the problem.
NESTEDFP_API double nestedfp_predict(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config) {
    const GemmDesc desc = make_desc(precision, m, n, k);
    const GemmConfig wanted = make_config(config);
    return is_valid(desc, wanted, num_sms, nullptr) ? predict_us(desc, wanted, num_sms) : -1;
}

// plan[5]: blocks, token_tiles, tiles, whole_tiles, steps.
NESTEDFP_API void nestedfp_plan(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config,
                                int* plan) {
    const GemmPlan made = make_plan(make_desc(precision, m, n, k), make_config(config), num_sms);
    plan[0] = made.blocks;
    plan[1] = made.token_tiles;
    plan[2] = made.tiles;
    plan[3] = made.whole_tiles;
    plan[4] = made.steps;
}
