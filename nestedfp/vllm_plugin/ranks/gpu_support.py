"""What this project can do on a GPU, by its compute capability. Pure."""

from enum import StrEnum

from nestedfp.vllm_plugin.options import PluginOptions

KERNELS = (9, 0)  # csrc/cuda is compiled for sm_90a, which runs there and nowhere else


class LinearPath(StrEnum):
    """How linear layers run."""

    KERNELS = "kernels"  # this project's kernels: both precisions
    PLAIN_FP16 = "plain_fp16"  # plain FP16 weights and vLLM's own kernels: one precision


def support(capability: tuple[int, int] | None, options: PluginOptions) -> LinearPath:
    """Choose how an engine runs its linear layers.

    Args:
        capability: the GPU's compute capability; None: a CPU.
        options: ``unsupported_gpu`` says what to do on a GPU without kernels; ``fp16_only`` asks for plain FP16 anywhere.

    Raises:
        ValueError: for a GPU without kernels that the configuration does not want to run in FP16 only.
    """
    if options.fp16_only:
        return LinearPath.PLAIN_FP16
    if capability is None or capability == KERNELS:
        return LinearPath.KERNELS
    if options.unsupported_gpu == "fp16":
        return LinearPath.PLAIN_FP16
    found = f"{capability[0]}.{capability[1]}"
    why = "has no FP8 tensor cores" if capability < (8, 9) else "has FP8 tensor cores, but no kernels here yet"
    raise ValueError(
        f"nestedfp's GPU kernels need compute capability 9.0 (H100, H200); this GPU has {found} and {why}. To serve exact "
        "FP16 only, through vLLM's own kernels, set additional_config={'nestedfp': {'unsupported_gpu': 'fp16'}} (in a "
        "deployment YAML engine.unsupported_gpu: fp16)"
    )
