"""Which GPUs and installations this project can serve on."""

from nestedfp.kernels.gpu_kernels import PORTABLE_FROM, is_built


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
