"""The CUDA kernels before a linear layer, compiled for the host with a thread for each thread of a block: no GPU is needed.

What this cannot show: the memory model of a GPU, its rsqrt and exp, launches that overlap: tests/kernels/test_gpu_fused_ops.py.

Run: ``pytest -q tests/kernels/test_kernels_on_host.py``
"""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from fused_reference import assert_close, check_codes, quantised
from gemm_library import CSRC

from nestedfp.kernels import ops

HERE = Path(__file__).resolve().parents[1] / "host_cuda"
FP16, FP8 = 0, 1
EPSILON = 1e-5
UNTOUCHED = 0x55


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels as a library."""
    if shutil.which("c++") is None or platform.machine() != "x86_64":
        pytest.skip("needs a C++ compiler for x86-64")
    library = tmp_path_factory.mktemp("kernels") / "kernels.so"
    flags = ["-std=c++20", "-O2", "-mf16c", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing"]
    command = ["c++", *flags, "-o", library, f"-I{HERE}", f"-I{CSRC}", "-x", "c++", HERE / "kernels.cpp"]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(library)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.norm.argtypes = [pointer] * 6 + [ctypes.c_float, number, number, ctypes.c_int]
    found.silu.argtypes = [pointer] * 3 + [number, number, ctypes.c_int]
    found.quantize.argtypes = [pointer] * 3 + [number, number]
    return found


def untouched(rows, columns):
    return torch.full((rows, 2 * columns), UNTOUCHED, dtype=torch.uint8).view(torch.float16)


def pointers(*tensors):
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def norm(kernels, x, residual, total, weight, to):
    """Run the norm; return what it wrote into a carrier and scales."""
    carrier, scales = untouched(*x.shape), torch.full((len(x),), -1.0)
    assert kernels.norm(*pointers(x, residual, total, weight, carrier, scales), EPSILON, *x.shape, to) == 0
    return carrier, scales


# Both numbers of columns that a thread holds, whole and partly empty warps, the widest row.
@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (3, 960), (2, 4096), (257, 64), (258, 320), (1, 16384)])
@pytest.mark.parametrize("adds", [False, True])
def test_a_norm_is_vllms_and_its_codes_are_the_quantisers(kernels, rows, columns, adds):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, columns).half() * 3, torch.randn(columns).half()
    residual = torch.randn(rows, columns).half() if adds else None
    expected, *_ = ops.add_rms_norm(x, residual, weight, EPSILON) if adds else ops.rms_norm(x, weight, EPSILON)
    totals = [untouched(rows, columns) if adds else None for _ in (FP16, FP8)]
    halves, unread = norm(kernels, x, residual, totals[FP16], weight, FP16)
    assert_close(halves, expected)
    assert (unread == -1).all()
    carrier, scales = norm(kernels, x, residual, totals[FP8], weight, FP8)
    check_codes(halves, carrier, scales)
    assert (carrier.view(torch.uint8).flatten()[rows * columns :] == UNTOUCHED).all()
    if adds:
        assert all(torch.equal(total, x + residual) for total in totals)
        in_place = residual.clone()
        again, _ = norm(kernels, x, in_place, in_place, weight, FP16)
        assert torch.equal(in_place, totals[FP16])
        assert torch.equal(again, halves)


@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (3, 896), (257, 896), (257, 8256), (1, 16448), (1, 40960)])
def test_silu_is_vllms_and_its_codes_are_the_quantisers(kernels, rows, columns):
    torch.manual_seed(0)
    x = torch.randn(rows, 2 * columns).half() * 2
    expected, _ = ops.silu_and_mul(x)
    halves, carrier, scales = untouched(rows, columns), untouched(rows, columns), torch.full((rows,), -1.0)
    assert kernels.silu(*pointers(x, halves, scales), rows, columns, FP16) == 0
    assert_close(halves, expected)
    assert (scales == -1).all()
    assert kernels.silu(*pointers(x, carrier, scales), rows, columns, FP8) == 0
    check_codes(halves, carrier, scales)
    assert (carrier.view(torch.uint8).flatten()[rows * columns :] == UNTOUCHED).all()


@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (3, 100), (257, 896)])
def test_the_quantiser_is_the_references(kernels, rows, columns):
    torch.manual_seed(0)
    x = torch.randn(rows, columns).half()
    expected, expected_scales = quantised(x)
    codes, scales = torch.full_like(expected, UNTOUCHED), torch.empty(rows)
    assert kernels.quantize(*pointers(x, codes, scales), rows, columns) == 0
    assert torch.equal(codes, expected)
    assert torch.equal(scales, expected_scales)


def test_widths_that_the_kernels_do_not_take_are_refused(kernels):
    x = torch.zeros(1, 16448).half()
    assert kernels.norm(*pointers(x, None, None, x, x, x), EPSILON, 1, 16448, FP16) != 0
    assert kernels.norm(*pointers(x, None, None, x, x, x), EPSILON, 1, 100, FP16) != 0
    assert kernels.silu(*pointers(x, x, x), 1, 100, FP16) != 0
