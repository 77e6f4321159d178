// FP8 tiles of 128 tokens and more.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {

NESTEDFP_INSTANTIATE(kFp8, 2, 1, 128, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 2, 1, 160, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 2, 1, 192, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 2, 1, 256, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 3, 1, 128, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 3, 1, 160, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 3, 1, 192, 1, 1);
NESTEDFP_INSTANTIATE(kFp8, 2, 1, 128, 1, 2);
NESTEDFP_INSTANTIATE(kFp8, 2, 1, 256, 1, 2);

}  // namespace nestedfp::cuda
