"""The GPU kernel that joins packed planes into FP16 weights, run here without a GPU: its source on an emulated grid.

Run: ``pytest -q tests/kernels/test_join_kernel.py``
"""

import struct

import emulated
import gemm_problems
import numpy as np
import pytest
import torch

from nestedfp.kernels import ops


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("join") / "join"
    return emulated.build(
        path, "join.cpp", ["cuda/kernels/join.cu", emulated.EMULATOR / "hopper.cpp"], *emulated.SANITIZERS
    )


def run(program, weight, first_row, rows, seed=0):
    """Return what the kernel makes of a weight's planes, [rows, k]."""
    n, k = weight.shape
    upper, lower, _ = ops.split(weight)
    given = struct.pack("5q", n, k, first_row, rows, seed) + upper.numpy().tobytes() + lower.numpy().tobytes()
    ended = emulated.run(program, given)
    assert ended.returncode == 0, ended.stderr.decode()[:3000]
    return torch.from_numpy(np.frombuffer(ended.stdout, dtype=np.float16).copy()).view(rows, k)


def bits(weight):
    return weight.contiguous().view(torch.int16)


def test_every_value_of_the_format_comes_back(program):
    every = gemm_problems.every_value().flatten()
    weight = torch.cat([every, every[: 256 * 128 - len(every)]]).view(256, 128)
    assert torch.equal(bits(run(program, weight, 0, 256)), bits(weight))


@pytest.mark.parametrize(
    ("n", "k", "first_row", "rows"),
    [
        (64, 64, 0, 64),
        (200, 72, 0, 200),  # neither whole blocks of rows nor of columns
        (200, 328, 128, 72),
        (200, 200, 64, 100),  # a part that ends within a block of rows
        (65, 8, 64, 1),
        (70, 77, 0, 70),  # rows that are not aligned
    ],
)
def test_any_rows_of_any_shape(program, n, k, first_row, rows):
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n + k)).mul(0.3).clamp(-1.75, 1.75).half()
    found = run(program, weight, first_row, rows, seed=n)
    assert torch.equal(bits(found), bits(weight[first_row : first_row + rows]))
