// The launchers in the order of tiles.inc.
#include "tile_list.h"

namespace nestedfp::cuda {

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm>
cudaError_t launch(const CUtensorMap&, const CUtensorMap&, const KernelArgs&, int, bool, cudaStream_t);

TileLauncher tile_launcher(int index) {
    static constexpr TileLauncher kLaunchers[] = {
#define NESTEDFP_TILE(precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm) \
    &launch<Precision::precision, row_warpgroups, k_warpgroups, tokens, blocks_per_sm>,
#include "tiles.inc"
#undef NESTEDFP_TILE
    };
    return kLaunchers[index];
}

}  // namespace nestedfp::cuda
