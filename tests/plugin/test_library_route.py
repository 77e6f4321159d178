"""Which steps go to the libraries' GEMMs on GPUs that run the portable kernels. No GPU.

Run: ``pytest -q tests/plugin/test_library_route.py``; the products themselves: tests/kernels/test_gpu_library_route.py
"""

import warnings
from types import SimpleNamespace

import pytest
import torch

from nestedfp.kernels import ops
from nestedfp.modes import Mode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from nestedfp.vllm_plugin.weights import library_route


@pytest.mark.parametrize(
    ("library_us", "expected"),
    [
        ((5, 5, 5, 5), 16),
        ((20, 20, 5, 5), 64),
        ((5, 20, 5, 5), 64),  # a lucky time below does not count
        ((5, 5, 5, 20), None),
        ((10, 10, 10, 10), None),  # as fast: one kernel less to know about
        ((), None),
    ],
)
def test_a_library_is_worth_it_from_where_it_stays_faster(library_us, expected):
    times = [(tokens, 10.0, us) for tokens, us in zip((16, 32, 64, 128), library_us, strict=False)]
    assert library_route.first_worth(times) == expected


@pytest.mark.parametrize(("n", "k"), [(65536, 5120), (5120, 32768), (16, 8), (6144, 5120), (4112, 81920)])
def test_joined_weights_stay_within_the_scratch_memory(n, k):
    parts = library_route.parts(n, k)
    assert [first for first, _ in parts] == [sum(rows for _, rows in parts[:i]) for i in range(len(parts))]
    assert sum(rows for _, rows in parts) == n
    for first, rows in parts:
        assert first % library_route.ROW_BLOCK == 0
        assert rows * k * 2 <= library_route.SCRATCH_BYTES


def layer(**changes):
    given = {"nestedfp_shape": (64, 64), "weight_lower": torch.empty(0), "outlier_deltas": None}
    return SimpleNamespace(**(given | changes))


def test_layers_that_the_libraries_cannot_take_stay_with_the_kernels():
    assert library_route.fits(layer())
    assert not library_route.fits(layer(nestedfp_shape=(72, 64)))
    assert not library_route.fits(layer(nestedfp_shape=(64, 68)))
    assert not library_route.fits(layer(weight_lower=None)), "two copies: FP16 is vLLM's own already"
    assert not library_route.fits(layer(outlier_deltas=torch.ones(1)))


@pytest.fixture
def calls(monkeypatch):
    """Who multiplies, in the places of both."""
    found = []

    def product(name):
        def multiply(x, upper, lower, bias, n, k, *_):
            found.append(name)
            return x.new_zeros(len(x), n)

        return multiply

    monkeypatch.setattr(library_route, "PRODUCTS", {mode: product(mode.value) for mode in Mode})
    monkeypatch.setattr(library_route.ops, "linear", lambda x, *rest: x.new_zeros(*x.shape[:-1], rest[6]))
    monkeypatch.setattr(library_route, "_from_tokens", {(32, 8): {Mode.FP8: 4}, (48, 8): {Mode.FP16: 2, Mode.FP8: 100}})
    yield found
    ops.set_mode(Mode.FP16)


@pytest.mark.parametrize(
    ("n", "mode", "shape", "by"),
    [
        (32, Mode.FP8, (3, 8), []),
        (32, Mode.FP8, (4, 8), ["fp8"]),
        (32, Mode.FP8, (2, 2, 8), ["fp8"]),  # tokens, not the first axis
        (32, Mode.FP16, (4096, 8), []),  # nowhere worth it
        (48, Mode.FP16, (2, 8), ["fp16"]),
        (48, Mode.FP8, (99, 8), []),
        (64, Mode.FP16, (4096, 8), []),  # a shape that was not measured
    ],
)
def test_the_mode_and_the_tokens_of_a_step_say_who_multiplies(calls, n, mode, shape, by):
    ops.set_mode(mode)
    out = library_route._on_gpu(torch.zeros(shape), None, None, None, n, 8, True)
    assert out.shape == (*shape[:-1], n)
    assert calls == by


def test_the_compiler_knows_the_shape_of_the_result():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, plane = torch.empty(3, 5, 8, dtype=torch.float16), torch.empty(32, 64, dtype=torch.uint8)
        out = library_route._fake(x, plane, plane, None, 32, 8, True)
    assert out.shape == (3, 5, 32)
    assert out.dtype == torch.float16
