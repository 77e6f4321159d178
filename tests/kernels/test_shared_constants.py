"""Constants that C++ and Python both define: equal in this build, and a difference is found when a library is loaded."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gemm_library import CSRC, build

from nestedfp.kernels import cuda_library, ops, shared_constants

pytestmark = pytest.mark.usefixtures("host_library")

ROOT = Path(__file__).parents[2]
OWN = {"panel_rows": ops.PANEL_ROWS, "pair": ops.PAIR}


def test_the_cpu_library_returns_every_constant_of_this_source():
    text = ops._OPS.shared_constants()
    assert dict(field.split("=") for field in text.split()) == {
        name: str(value) for name, value in {**shared_constants.FORMAT, **OWN}.items()
    }


DIFFERENT = {
    "format_version is 1 there and 2 here": "import nestedfp.format as m; m.FORMAT_VERSION = 2",
    "limit_bits is 16128 there and 15872 here": "import nestedfp.format as m; m.LIMIT = 1.5",
    "upper_scale is 256 there and 128 here": "import nestedfp.format as m; m.UPPER_SCALE = 128.0",
    "e4m3_max is 448 there and 240 here": "import nestedfp.kernels.activations as m; m.E4M3_MAX = 240.0",
}
FORKS = """
import os, sys, torch
for change in sys.argv[1:]:
    if not os.fork():
        exec(change)
        import nestedfp.kernels.ops
        sys.exit()
    assert os.wait()[1] != 0
"""


def test_a_source_that_is_not_the_librarys_cannot_be_imported():
    command = [sys.executable, "-W", "ignore", "-c", FORKS, *DIFFERENT.values()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    for message in DIFFERENT:
        assert f"ImportError: the compiled library nestedfp_C does not belong to this source: {message}." in done.stderr


def test_a_precisions_number_differs():
    built = " ".join(f"{name}={value}" for name, value in {**shared_constants.FORMAT, "precision_fp8": 2}.items())
    with pytest.raises(ImportError, match=r"precision_fp8 is 2 there and 1 here\. Build it again"):
        shared_constants.check("nestedfp_C", built, {})


def test_a_library_from_before_the_check_is_refused():
    with pytest.raises(ImportError, match="format_version is missing there and 1 here"):
        shared_constants.check("nestedfp_C", None, {})


def test_the_cuda_librarys_constants_are_this_sources():
    cuda_library.check_constants(cuda_library.library())


def test_a_cuda_library_of_another_layout_is_refused(tmp_path):
    shutil.copytree(CSRC, tmp_path / "csrc")
    layout = tmp_path / "csrc/cuda/kernels/layout.h"
    text = layout.read_text()
    assert "kNeutralBlocks = 2" in text
    layout.write_text(text.replace("kNeutralBlocks = 2", "kNeutralBlocks = 3"))
    build(tmp_path / "csrc", tmp_path / "other.so")
    with pytest.raises(ImportError, match=r"nestedfp_cuda_C does not belong .*: neutral_blocks is 3 there and 2 here"):
        cuda_library.check_constants(ctypes.CDLL(str(tmp_path / "other.so")))
