"""Which of this project's kernels a GPU runs, by its compute capability. Pure but for one environment variable."""

import os
from importlib.util import find_spec

HOPPER = (9, 0)  # csrc/cuda/gemm is compiled for sm_90a, which runs there and nowhere else
PORTABLE_FROM = (8, 0)  # csrc/cuda/portable

FORCE_VARIABLE = (
    "NESTEDFP_GPU_KERNELS"  # "portable": a Hopper stands in for other GPUs; also read by csrc/cuda/host/gpu_traits.cpp
)


def multiplies_fp8(capability: tuple[int, int]) -> bool:
    """Whether FP8 mode multiplies E4M3 by E4M3 there; elsewhere FP16 activations by the FP8 weights.

    10.x has FP8 tensor cores, but none that the portable kernels' instructions reach (csrc/cuda/host/gpu_traits.h).
    """
    return capability in ((8, 9), HOPPER) or capability >= (12, 0)


def is_portable(capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability runs the portable kernels.

    Raises:
        ValueError: for an unknown value of the environment variable.
    """
    forced = os.environ.get(FORCE_VARIABLE, "auto")
    if forced not in ("auto", "portable"):
        raise ValueError(f"{FORCE_VARIABLE} must be auto or portable, got {forced!r}; unset it")
    return capability != HOPPER or forced == "portable"


def is_built() -> bool:
    """Whether the installation has the CUDA kernels."""
    return find_spec("nestedfp_cuda_C") is not None


def library_path() -> str:
    """Return the file of the CUDA kernels.

    Raises:
        ImportError: the installation has none.
    """
    spec = find_spec("nestedfp_cuda_C")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the compiled library nestedfp_cuda_C is not installed; build with nvcc (CUDA 12.8 or newer) on the PATH: 'pip install "
            "--no-build-isolation .'"
        )
    return spec.origin


def require(capability: tuple[int, int]) -> None:
    """Refuse a GPU that has no kernels, and an installation without them.

    Args:
        capability: the GPU's compute capability.

    Raises:
        ValueError: with what to install again, and how, or what to serve instead.
    """
    if capability < PORTABLE_FROM:
        raise ValueError(
            f"nestedfp's GPU kernels need compute capability 8.0 or newer, this GPU has {capability[0]}.{capability[1]}; serve "
            "plain FP16, without quantization='nestedfp' (engine.quantization: none)"
        )
    if not is_built():
        raise ValueError(
            "nestedfp was installed without its kernels for GPUs: nvcc was not on the PATH; with nvcc of CUDA 12.8 or newer there, "
            "install it again ('pip install --no-build-isolation .'), or serve the model without quantization='nestedfp'"
        )
