// FP16 tiles of up to 64 tokens.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {

NESTEDFP_INSTANTIATE(kFp16, 1, 2, 16, 2, 1);
NESTEDFP_INSTANTIATE(kFp16, 1, 2, 32, 2, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 16, 2, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 32, 2, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 64, 2, 1);
NESTEDFP_INSTANTIATE(kFp16, 1, 2, 64, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 64, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 3, 1, 64, 1, 1);

}  // namespace nestedfp::cuda
