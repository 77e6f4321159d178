#include "cuda/host/tile_list.h"

namespace nestedfp::cuda {

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm, int MulticastCtas>
cudaError_t prepare();

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm, int MulticastCtas>
cudaError_t launch(const CUtensorMap&, const CUtensorMap&, const KernelArgs&, bool, cudaStream_t);

TileFunctions tile_functions(int index) {
    static constexpr TileFunctions kFunctions[] = {
#define NESTEDFP_TILE(precision, ...) \
    {&prepare<Precision::precision, __VA_ARGS__>, &launch<Precision::precision, __VA_ARGS__>},
#include "cuda/tiles.inc"
#undef NESTEDFP_TILE
    };
    return kFunctions[index];
}

template <int... Tile>
cudaError_t prepare_mixed();

template <int... Tile>
cudaError_t launch_mixed(const MixedKernelArgs&, bool, cudaStream_t);

MixedTileFunctions mixed_tile_functions(int index) {
    static constexpr MixedTileFunctions kFunctions[] = {
#define NESTEDFP_MIXED_TILE(...) {&prepare_mixed<__VA_ARGS__>, &launch_mixed<__VA_ARGS__>},
#include "cuda/mixed_tiles.inc"
#undef NESTEDFP_MIXED_TILE
    };
    return kFunctions[index];
}

}  // namespace nestedfp::cuda
