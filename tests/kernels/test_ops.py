"""The compiled operators as torch sees them: schemas, fakes, error texts, and the mode switch under torch.compile.

Run: ``pytest -q tests/kernels/test_ops.py``
"""

import os
import subprocess
import sys

import pytest
import torch
from counting_backend import CountingBackend

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

pytestmark = pytest.mark.usefixtures("fp16_mode")

N, K = 40, 70


@pytest.fixture
def planes():
    nested = nest((torch.randn(N, K) * 0.1).half())
    assert isinstance(nested, NestedWeight)
    return nested.upper, nested.lower


@pytest.fixture
def packed(planes):
    return ops.pack(*planes)


def outlier_lists(rows=(1, 3), cols=(0, 69)):
    return (
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor(cols, dtype=torch.int32),
        torch.ones(len(rows), dtype=torch.float32),
    )


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_opcheck_of_linear(packed, mode, dtype):
    ops.set_mode(mode)
    linear = torch.ops.nestedfp.linear.default
    x = torch.randn(2, 3, K).to(dtype)
    torch.library.opcheck(linear, (x, *packed, None, None, None, None, N, K, False))
    torch.library.opcheck(linear, (x, *packed, torch.randn(N), *outlier_lists(), N, K, True))


def test_a_new_process_starts_in_fp16_and_the_mode_is_process_wide():
    assert ops.get_mode() is Mode.FP16
    ops.set_mode(Mode.FP8)
    assert ops.get_mode() is Mode.FP8
    with pytest.raises(RuntimeError, match=r"expected 0 \(FP16\) or 1 \(FP8\), got 2"):
        torch.ops.nestedfp.set_mode(2)


def test_one_compiled_graph_serves_both_modes(packed):
    backend = CountingBackend()

    @torch.compile(backend=backend, fullgraph=True)
    def layer(x):
        return ops.linear(torch.relu(x), *packed, None, None, None, None, N, K, False) + 1

    x = torch.randn(4, K)
    results = {}
    for mode in (Mode.FP16, Mode.FP8, Mode.FP16, Mode.FP8):
        ops.set_mode(mode)
        result = layer(x)
        assert torch.equal(result, results.setdefault(mode, result))
        assert torch.equal(result, ops.linear(torch.relu(x), *packed, None, None, None, None, N, K, False) + 1)
    assert not torch.equal(results[Mode.FP16], results[Mode.FP8])
    assert backend.compilations == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, K + 1)}, r"expected x of shape \[\.\.\., k=70\], got \[2, 71\]"),
        ({"x": torch.zeros(2, K, dtype=torch.int32)}, "expected x of dtype Half or Float, got Int"),
        (
            {"upper": torch.zeros(3, 8, dtype=torch.uint8)},
            r"upper from nestedfp::pack of shape \[3, 1120\], got \[3, 8\]",
        ),
        ({"lower": torch.zeros(3, 1120, dtype=torch.int8)}, "expected lower of dtype Byte, got Char"),
        ({"bias": torch.zeros(N - 1)}, r"expected bias of shape \[40\], got \[39\]"),
        ({"bias": torch.zeros(N, dtype=torch.float64)}, "expected bias of dtype Half or Float, got Double"),
        ({"outlier_cols": None}, "all given or all None"),
        ({"outlier_rows": torch.zeros(1, dtype=torch.int32)}, r"expected outlier_cols of shape \[1\], got \[2\]"),
        ({"outlier_rows": outlier_lists(rows=(3, 1))[0]}, r"ascending order of row, got \(1, 69\) at index 1"),
        ({"outlier_cols": outlier_lists(cols=(-1, 0))[1]}, r"expected outliers inside \[40, 70\] .* got \(1, -1\)"),
        ({"n": 0}, "expected n, k >= 1, got n=0, k=70"),
    ],
)
def test_linear_says_what_is_wrong(packed, change, message):
    rows, cols, deltas = outlier_lists()
    arguments = {
        "x": torch.zeros(2, K),
        "upper": packed[0],
        "lower": packed[1],
        "bias": None,
        "outlier_rows": rows,
        "outlier_cols": cols,
        "outlier_deltas": deltas,
        "n": N,
        "k": K,
        "quantize_activations": False,
    }
    with pytest.raises(RuntimeError, match=f"nestedfp::linear: .*{message}"):
        ops.linear(**(arguments | change))


def test_the_plane_operators_say_what_is_wrong(planes, packed):
    with pytest.raises(RuntimeError, match="nestedfp::split: expected weight of dtype Half, got Float"):
        ops.split(torch.zeros(4, 4))
    with pytest.raises(RuntimeError, match=r"nestedfp::split: expected a contiguous weight; call \.contiguous\(\)"):
        ops.split(torch.zeros(4, 6, dtype=torch.float16).t())
    with pytest.raises(RuntimeError, match=r"nestedfp::pack: expected lower of shape \[40, 70\], got \[39, 70\]"):
        ops.pack(planes[0], planes[1][1:])
    with pytest.raises(
        RuntimeError, match=r"nestedfp::join_rows: expected .* rows of 0 to n, got .* 2 rows from 39 on"
    ):
        ops.join_rows(*packed, N, K, 39, 2)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_unknown_isa_is_an_error():
    done = run_python("from nestedfp.kernels import ops; ops.cpu_isa()", NESTEDFP_CPU_ISA="sse9")
    assert done.returncode != 0
    assert "NESTEDFP_CPU_ISA: expected scalar or avx2, got 'sse9'" in done.stderr
