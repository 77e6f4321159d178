"""The choice of GEMM configs as a library that the C++ compiler alone builds: no CUDA and no GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_kernels as kernels

CSRC = Path(__file__).parents[1] / "csrc"
CUDA = CSRC / "cuda"
SOURCES = (*sorted((CUDA / "config").glob("*.cpp")), CUDA / "capi/capi_config.cpp")


@pytest.fixture(scope="module", autouse=True)
def host_library(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("gemm_config") / "config.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, f"-I{CSRC}", *SOURCES], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTEDFP_CUDA_LIBRARY", str(library))
        kernels.library.cache_clear()
        kernels.tiles.cache_clear()
        yield
    kernels.library.cache_clear()
    kernels.tiles.cache_clear()
