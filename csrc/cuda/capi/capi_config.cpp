// The choice of a config as C functions, host only: with gemm_config.cpp this makes a library that needs no CUDA, which
// the tests build with the C++ compiler alone. Structs cross as they are (nestedfp/kernels/cuda_library.py).
#include "cuda/capi/capi.h"
#include "cuda/config/gemm.h"
#include "cuda/config/gemm_timings.h"
#include "cuda/config/mixed.h"
#include "cuda/portable/plan.h"

using namespace nestedfp::cuda;
using nestedfp::Precision;

NESTEDFP_API const Tile* nestedfp_tiles() { return kTiles; }
NESTEDFP_API int nestedfp_tile_count() { return kTileCount; }
NESTEDFP_API const MixedTile* nestedfp_mixed_tiles() { return kMixedTiles; }
NESTEDFP_API int nestedfp_mixed_tile_count() { return kMixedTileCount; }

NESTEDFP_API void nestedfp_choose(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                  GemmConfig* config) {
    *config = choose_config({precision, m, n, k}, num_sms);
}

// The predicted microseconds, or a negative number if the config is not valid for the problem.
NESTEDFP_API double nestedfp_predict(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                     const GemmConfig* config) {
    const GemmDesc desc{precision, m, n, k};
    return is_valid(desc, *config, num_sms, nullptr) ? predict_us(desc, *config, num_sms) : -1;
}

// Returns 0, or 1 if the config is not valid for the problem or the time not above zero.
NESTEDFP_API int nestedfp_take_timing(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                      const GemmConfig* config, double us) {
    const GemmDesc desc{precision, m, n, k};
    if (!(us > 0) || !is_valid(desc, *config, num_sms, nullptr)) return 1;
    take_timing(desc, *config, num_sms, us);
    return 0;
}

NESTEDFP_API void nestedfp_forget_timings() { forget_timings(); }

// Returns the bytes of workspace that a config of the mixed GEMM needs, -1 if it is not valid.
NESTEDFP_API int64_t nestedfp_mixed_workspace(int64_t exact_rows, int64_t fast_rows, int64_t n, int64_t k, int num_sms,
                                              const MixedConfig* config) {
    MixedPlan plan;
    const char* message = nullptr;
    if (!make_plan({exact_rows, fast_rows, n, k}, *config, num_sms, &plan, &message)) return -1;
    return plan.mixed_workspace_bytes + plan.rest_workspace_bytes;
}

NESTEDFP_API void nestedfp_take_mixed(int64_t n, int64_t k, int64_t fast_rows, const MixedConfig* config) {
    take_mixed(n, k, fast_rows, *config);
}

NESTEDFP_API void nestedfp_forget_mixed() { forget_mixed(); }

// Returns 0 and the config that the mixed GEMM takes, or 1: two launches.
NESTEDFP_API int nestedfp_choose_mixed(int64_t exact_rows, int64_t fast_rows, int64_t n, int64_t k, int num_sms,
                                       MixedConfig* config) {
    return choose_mixed({exact_rows, fast_rows, n, k}, num_sms, config) ? 0 : 1;
}

NESTEDFP_API int64_t nestedfp_workspace_bytes(Precision precision, int64_t m, int64_t n, int64_t k, int num_sms,
                                              const GemmConfig* config) {
    return workspace_bytes({precision, m, n, k}, *config, num_sms);
}

// The portable GEMM's choice: plan[2]: tile, split.
NESTEDFP_API void nestedfp_portable_plan(PortableOperands operands, int64_t m, int64_t n, int64_t k, int num_sms,
                                         int* plan) {
    const PortablePlan made = plan_portable(operands, m, n, k, num_sms);
    plan[0] = made.tile;
    plan[1] = made.split;
}

NESTEDFP_API int64_t nestedfp_portable_workspace_bytes(PortableOperands operands, int64_t m, int64_t n, int64_t k,
                                                       int tile, int split) {
    return portable_workspace_bytes(cut_portable(operands, m, n, k, tile, split));
}
