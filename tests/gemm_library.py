"""The choice of GEMM configs as a library that the C++ compiler alone builds: no CUDA and no GPU."""

import ctypes
import subprocess
from pathlib import Path

from nestedfp.kernels.cuda_library import NUM_SMS_H100, Config, library

CSRC = Path(__file__).parents[1] / "csrc"
CUDA = CSRC / "cuda"


def build(csrc, path, *flags):
    """Compile the choice of configs and its C functions from a copy of csrc/."""
    cuda = csrc / "cuda"
    sources = (*sorted((cuda / "config").glob("*.cpp")), cuda / "portable/plan.cpp", cuda / "capi/capi_config.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run(["c++", *flags, "-o", path, f"-I{csrc}", *sources], check=True)


def plan_of(precision: int, m: int, n: int, k: int, config: Config, num_sms: int = NUM_SMS_H100) -> dict[str, int]:
    """Return how a problem is cut into work (csrc/cuda/config/gemm.h)."""
    names = ("blocks", "row_tiles", "token_tiles", "raster_group", "tiles", "whole_tiles", "cluster", "steps")
    names += ("work_units", "columns", "multicast_ctas")
    result = (ctypes.c_int * len(names))()
    library().nestedfp_plan(precision, m, n, k, num_sms, config.fields(), result)
    return dict(zip(names, result, strict=True))


def parts(
    precision: int, m: int, n: int, k: int, config: Config, block: int, num_sms: int = NUM_SMS_H100
) -> list[tuple[int, int, int, int, int]]:
    """Return a block's work unit as (tile, first step, steps, index, count), in its order (csrc/cuda/config/stream_k.h)."""
    fields = (ctypes.c_int * (5 * 1024))()
    count = library().nestedfp_parts(precision, m, n, k, num_sms, config.fields(), block, fields)
    return [tuple(fields[5 * i : 5 * i + 5]) for i in range(count)]
