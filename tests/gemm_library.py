"""The choice of GEMM configs as a library that the C++ compiler alone builds: no CUDA and no GPU."""

import subprocess
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
CUDA = CSRC / "cuda"


def build(csrc, library, *flags):
    """Compile the choice of configs and its C functions from a copy of csrc/."""
    cuda = csrc / "cuda"
    sources = [*sorted((cuda / "config").glob("*.cpp")), cuda / "portable/plan.cpp", cuda / "capi/capi_config.cpp"]
    sources.append(Path(__file__).with_name("host_plans.cpp"))
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run(["c++", *flags, "-o", library, f"-I{csrc}", *sources], check=True)
