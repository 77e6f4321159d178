"""Which steps go to the libraries' GEMMs on GPUs that run the portable kernels. No GPU.

Run: ``pytest -q tests/plugin/test_library_route.py``; the products themselves: tests/kernels/test_gpu_library_route.py
"""

import warnings
from types import SimpleNamespace

import pytest
import torch

from nestedfp.kernels import ops
from nestedfp.kernels.cuda_library import BLOCK_ROWS
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
        assert first % BLOCK_ROWS == 0
        assert rows * k * 2 <= library_route.SCRATCH_BYTES


def layer(**changes):
    given = {"nestedfp_shape": (64, 64), "weight_lower": torch.empty(0), "outlier_deltas": None}
    return SimpleNamespace(**(given | changes))


def test_layers_that_the_libraries_cannot_take_stay_with_the_kernels():
    assert library_route.fits(layer())
    assert not library_route.fits(layer(nestedfp_shape=(72, 64)))
    assert not library_route.fits(layer(nestedfp_shape=(64, 68)))
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


WEIGHT = SimpleNamespace(n=64, k=128, upper=torch.empty(0), lower=torch.empty(0))


def test_a_library_must_agree_for_every_token_and_every_part_of_the_outputs(monkeypatch):
    torch.manual_seed(3)
    x = library_route.activations(300, WEIGHT.k, torch.device("cpu"))
    weight = torch.randn(WEIGHT.n, WEIGHT.k)

    def right(given, upper, lower, bias, n, k):
        return given.float() @ weight.T + bias.float()

    def product(wrong):
        monkeypatch.setitem(library_route.PRODUCTS, Mode.FP8, lambda *given: wrong(right(*given)).half())
        return library_route.agrees(Mode.FP8, x, WEIGHT)

    def zeros(rows, columns):
        def wrong(out):
            out[rows, columns] = 0
            return out

        return wrong

    monkeypatch.setattr(library_route, "_portable", lambda *given: right(*given).half())
    everything = slice(None)
    assert product(lambda out: out)
    assert product(lambda out: out * (1 + 0.03 * torch.randn_like(out))), "activations that were rounded"
    assert not product(lambda out: 2 * out)
    assert not product(lambda out: out * torch.nan)
    assert not product(zeros(everything, slice(48, 64))), "the last columns"
    assert not product(zeros(0, everything)), "the smallest token"
    assert not product(zeros(299, everything)), "the last token"
    assert not product(lambda out: out.mean(0, keepdim=True) + 0 * out), "one scale for all tokens"


class Group:
    """A tensor-parallel group as rank 0, or rank 1 that is told ``told``, sees it."""

    world_size = 2

    def __init__(self, rank, told=None):
        self.rank_in_group, self.told = rank, told

    def broadcast_object(self, given, src):
        assert src == 0
        self.told = given if self.rank_in_group == 0 else self.told
        return self.told


def test_all_ranks_take_what_the_first_has_measured(monkeypatch):
    monkeypatch.setattr(library_route, "_from_tokens", {})
    monkeypatch.setattr(library_route, "_modes", lambda: list(Mode))
    monkeypatch.setattr(library_route, "_measured", lambda mode, weights, most: 128 if mode is Mode.FP8 else None)
    shapes = {(64, 128): [WEIGHT], (72, 128): [WEIGHT], (64, 132): [WEIGHT]}
    first = Group(0)
    monkeypatch.setattr(library_route, "get_tp_group", lambda: first)
    library_route.choose(shapes, 512, measure=True)
    assert library_route._from_tokens == {(64, 128): {Mode.FP8: 128}}
    library_route._from_tokens.clear()
    second = Group(1, first.told)
    monkeypatch.setattr(library_route, "get_tp_group", lambda: second)
    monkeypatch.setattr(library_route, "_measured", lambda *_: pytest.fail("measured on another rank"))
    library_route.choose(shapes, 512, measure=True)
    assert library_route._from_tokens == {(64, 128): {Mode.FP8: 128}}
    monkeypatch.setattr(library_route, "get_tp_group", lambda: Group(0))
    library_route.choose(shapes, 512, measure=False)
    assert library_route._from_tokens == {}, "pinned: the portable kernels multiply everything"
    assert library_route.scratch_bytes() == 0


@pytest.mark.parametrize(("tokens", "expected"), [({Mode.FP8: 1}, 0), ({Mode.FP16: 512}, library_route.SCRATCH_BYTES)])
def test_memory_for_joined_weights_is_kept_where_fp16_steps_need_it(monkeypatch, tokens, expected):
    monkeypatch.setattr(library_route, "_from_tokens", {(64, 128): tokens})
    assert library_route.scratch_bytes() == expected


def test_a_library_that_fails_is_not_used(monkeypatch):
    def missing(*_):
        raise NotImplementedError("No compiled cutlass_scaled_mm for CUDA device capability: 121")

    said = []
    monkeypatch.setattr(library_route.logger, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setitem(library_route.PRODUCTS, Mode.FP8, missing)
    monkeypatch.setattr(library_route, "rotation", list)
    assert library_route._measured(Mode.FP8, [WEIGHT], 512) is None
    monkeypatch.setattr(library_route, "agrees", lambda *_: False)
    assert library_route._measured(Mode.FP16, [WEIGHT], 512) is None
    assert said == [
        "N=64, K=128 in fp8: a library is not used: No compiled cutlass_scaled_mm for CUDA device capability: 121",
        "N=64, K=128 in fp16: a library is not used: it computes something else for 16 tokens",
    ]
    assert ops.get_mode() is Mode.FP16
