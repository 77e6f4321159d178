// FP16 tiles of 96 and 128 tokens.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {

NESTEDFP_INSTANTIATE(kFp16, 1, 2, 96, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 96, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 128, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 3, 1, 96, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 3, 1, 128, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 96, 2, 1);

}  // namespace nestedfp::cuda
