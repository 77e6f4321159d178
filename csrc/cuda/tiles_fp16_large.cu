// FP16 tiles of 160 tokens and more.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {

NESTEDFP_INSTANTIATE(kFp16, 2, 1, 160, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 192, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 256, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 3, 1, 160, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 3, 1, 192, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 176, 1, 1);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 192, 1, 2);
NESTEDFP_INSTANTIATE(kFp16, 2, 1, 256, 1, 2);

}  // namespace nestedfp::cuda
