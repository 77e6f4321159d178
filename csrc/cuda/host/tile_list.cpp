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

}  // namespace nestedfp::cuda
