"""The choice of GEMM configs as a library that the C++ compiler alone builds: no CUDA and no GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_kernels as kernels

CSRC = Path(__file__).parents[1] / "csrc"
CUDA = CSRC / "cuda"


def build(csrc, library, *flags):
    """Compile the choice of configs and its C functions from a copy of csrc/."""
    cuda = csrc / "cuda"
    sources = (*sorted((cuda / "config").glob("*.cpp")), cuda / "capi/capi_config.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run(["c++", *flags, "-o", library, f"-I{csrc}", *sources], check=True)


@pytest.fixture(scope="module", autouse=True)
def host_library(tmp_path_factory):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("gemm_config") / "config.so"
    build(CSRC, library, "-O1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTEDFP_CUDA_LIBRARY", str(library))
        kernels.library.cache_clear()
        kernels.tiles.cache_clear()
        yield
    kernels.library.cache_clear()
    kernels.tiles.cache_clear()
