"""What this project can do on a GPU, by its compute capability. Pure but for gpu_kernels.is_portable and is_built."""

from nestedfp.kernels.gpu_kernels import HOPPER, PORTABLE_FROM, is_built, is_portable
from nestedfp.vllm_plugin.options import PluginOptions


def require_built() -> None:
    """Refuse an installation without the kernels for GPUs.

    Raises:
        ValueError: with what to install again, and how.
    """
    if not is_built():
        raise ValueError(
            "nestedfp was installed without its kernels for GPUs: nvcc was not on the PATH; with nvcc of CUDA 12.8 or newer there, "
            "install it again ('pip install --no-build-isolation .'), or serve the model without quantization='nestedfp'"
        )


def runs_portable(capability: tuple[int, int] | None, options: PluginOptions) -> bool:
    """Return whether an engine runs the portable kernels, instead of those for a CPU or for Hopper.

    Args:
        capability: the GPU's compute capability; None: a CPU.
        options: ``unsupported_gpu`` says what to do on a GPU other than Hopper.

    Raises:
        ValueError: for a GPU that the configuration does not say what to do on, or that has no kernels.
    """
    if capability is None or not is_portable(capability):
        return False
    if capability == HOPPER:
        return True  # a stand-in, by the environment's wish
    if options.unsupported_gpu == "portable" and capability >= PORTABLE_FROM:
        return True
    found = f"{capability[0]}.{capability[1]}"
    portable = (
        "To serve both precisions through the portable kernels, which have never run on a card of that kind, set "
        "additional_config={'nestedfp': {'unsupported_gpu': 'portable'}} (in a deployment YAML engine.unsupported_gpu: "
        "portable). "
        if capability >= PORTABLE_FROM
        else "The portable kernels need 8.0 or newer. "
    )
    raise ValueError(
        f"nestedfp's GPU kernels are made for compute capability 9.0 (H100, H200); this GPU has {found}. {portable}Plain "
        "FP16 needs no nestedfp: serve without quantization='nestedfp' (engine.quantization: none)"
    )
