"""The CUDA half of ``torch.ops.nestedfp``. Call ``load`` once; nestedfp/kernels/ops.py then takes CUDA tensors too.

The library ``nestedfp_cuda_C`` is separate from ``nestedfp_C`` because machines without nvcc build only the latter.
Both implement the same schemas, so callers use nestedfp.kernels.ops for either device. What differs on a GPU:

* It must be of compute capability 8.0 or newer, and ``x`` and ``bias`` float16. 9.0 (H100, H200) has kernels of its own,
  others run the portable ones (nestedfp/kernels/gpu_kernels.py).
* ``pack`` returns another layout (csrc/cuda/kernels/layout.h).
* FP8 mode with ``quantize_activations`` multiplies E4M3 by E4M3 on the tensor cores, whose partial sums keep fewer
  bits than FP32's; without it, and where gpu_kernels.multiplies_fp8 says no, FP16 by the FP8 weights in FP32.
* Results are the same bits for the same inputs and shapes. Another number of tokens may choose another tile, hence
  another order of additions.
* The operators enqueue on torch's current stream and may be captured in CUDA graphs once ``pack`` has run on the
  device. Weights must come from ``pack``: by programmatic dependent launch a GEMM starts to load them while the kernel
  before it in the stream still runs.

Measured times: docs/benchmarks.md.
"""

from functools import cache

import torch

import nestedfp.kernels.ops  # noqa: F401  registers the schemas that the library implements
from nestedfp.kernels.gpu_kernels import library_path


@cache
def load() -> None:
    """Register the CUDA implementations. Later calls do nothing.

    Raises:
        ImportError: when the library is not installed, or cannot be loaded.
    """
    try:
        torch.ops.load_library(library_path())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"nestedfp.kernels.cuda_ops: nestedfp_cuda_C cannot be loaded ({error}); it needs a CUDA build of torch >= 2.11"
        ) from error
