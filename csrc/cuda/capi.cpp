// The kernels as C functions, for the tests and benchmarks that choose a config themselves. Loaded with ctypes.
#include <cstdint>

#include "gemm.h"
#include "kernels.h"
#include "layout.h"

#define NESTEDFP_API extern "C" __attribute__((visibility("default")))

using namespace nestedfp::cuda;

static GemmDesc make_desc(int precision, int64_t m, int64_t n, int64_t k) {
    return {static_cast<Precision>(precision), m, n, k};
}

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
    const GemmConfig wanted{config[0], config[1], config[2] != 0};
    return is_valid(desc, wanted, num_sms, nullptr) ? predict_us(desc, wanted, num_sms) : -1;
}

// plan[5]: blocks, token_tiles, tiles, whole_tiles, steps.
NESTEDFP_API void nestedfp_plan(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config, int* plan) {
    const GemmPlan made = make_plan(make_desc(precision, m, n, k), {config[0], config[1], config[2] != 0}, num_sms);
    plan[0] = made.blocks;
    plan[1] = made.token_tiles;
    plan[2] = made.tiles;
    plan[3] = made.whole_tiles;
    plan[4] = made.steps;
}

NESTEDFP_API int nestedfp_gemm(int precision, int64_t m, int64_t n, int64_t k, int num_sms, const int* config, const void* x,
                               int64_t x_pitch, const float* token_scale, const uint8_t* upper, const uint8_t* lower,
                               int neutral_lower, const void* bias, void* out, int early_start, void* stream) {
    const char* message = nullptr;
    return run_gemm(make_desc(precision, m, n, k), {config[0], config[1], config[2] != 0},
                    {x, x_pitch, token_scale, upper, lower, neutral_lower != 0, bias, out, early_start != 0}, num_sms,
                    static_cast<CUstream_st*>(stream), &message);
}

NESTEDFP_API int nestedfp_split(const void* weight, uint8_t* upper, uint8_t* lower, int64_t count, void* counts,
                                void* stream) {
    return run_split(static_cast<const uint16_t*>(weight), upper, lower, count, static_cast<unsigned long long*>(counts),
                     static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int64_t nestedfp_upper_pitch(int64_t k) { return upper_pitch(k); }
NESTEDFP_API int64_t nestedfp_lower_bytes(int64_t n, int64_t k) { return lower_bytes(n, k); }

NESTEDFP_API int nestedfp_pack(const uint8_t* upper, const uint8_t* lower, uint8_t* packed_upper, uint8_t* packed_lower,
                               int64_t n, int64_t k, void* stream) {
    return run_pack(upper, lower, packed_upper, packed_lower, n, k, static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int nestedfp_unpack(const uint8_t* packed_upper, const uint8_t* packed_lower, uint8_t* upper, uint8_t* lower,
                                 int64_t n, int64_t k, void* stream) {
    return run_unpack(packed_upper, packed_lower, upper, lower, n, k, static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int nestedfp_quantize(const void* x, int64_t x_pitch, uint8_t* codes, float* scale, int64_t m, int64_t k,
                                   void* stream) {
    return run_quantize(x, x_pitch, codes, scale, m, k, static_cast<CUstream_st*>(stream));
}

NESTEDFP_API int nestedfp_outliers(const void* x, int64_t x_pitch, const int32_t* rows, const int32_t* cols,
                                   const float* deltas, int64_t count, void* out, int64_t m, int64_t n, void* stream) {
    return run_outliers(x, x_pitch, rows, cols, deltas, count, out, m, n, static_cast<CUstream_st*>(stream));
}
