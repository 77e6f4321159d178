"""The libraries' GEMMs of nested weights on a GPU: operands and products, a Hopper standing in for the cards that use them.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_library_route.py``; FP8 products need compute capability 8.9 or newer.
"""

import warnings

import pytest
import torch
from quantizer_reference import quantize_per_token

from nestedfp.format import upper_to_float
from nestedfp.kernels import cuda_library, cuda_ops, ops
from nestedfp.modes import Mode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from nestedfp.vllm_plugin.weights import library_route

pytestmark = pytest.mark.gpu
multiplies_fp8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no FP8 products"
)
MODES = [Mode.FP16, pytest.param(Mode.FP8, marks=multiplies_fp8)]

SHAPES = [(64, 64), (4096, 4096), (6144, 5120), (1040, 8200), (8192, 5120)]  # the last is joined in two parts


@pytest.fixture(scope="module", autouse=True)
def library():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU of compute capability 8.0 or newer and the built kernels")
    cuda_ops.load()
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def exact_mode():
    yield
    ops.set_mode(Mode.FP16)


def packed(n, k):
    weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
    upper, lower, _ = ops.split(weight)
    return weight, upper, *ops.pack(upper, lower)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_joined_rows_are_the_weights_bit_for_bit(n, k):
    weight, _, upper, lower = packed(n, k)
    for first, rows in [(0, n), (0, min(n, 100)), (n // 64 // 2 * 64, 1)]:
        found = torch.ops.nestedfp.join_rows(upper, lower, n, k, first, rows)
        assert torch.equal(found.view(torch.int16), weight[first : first + rows].view(torch.int16))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 17, 300])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_fp16_products_are_of_the_exact_weights(n, k, tokens, with_bias):
    weight, _, upper, lower = packed(n, k)
    x = torch.randn(tokens, k, device="cuda").half()
    bias = torch.randn(n, device="cuda").half() if with_bias else None
    out = library_route.fp16_product(x, upper, lower, bias, n, k)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert out.shape == (tokens, n)
    assert (out.double() - expected).norm() < 1e-3 * expected.norm()


@multiplies_fp8
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 17, 300])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_fp8_products_are_of_the_quantiser_s_codes_and_the_upper_plane(n, k, tokens, with_bias):
    _, plain_upper, upper, lower = packed(n, k)
    x = torch.randn(tokens, k, device="cuda").half()
    bias = torch.randn(n, device="cuda").half() if with_bias else None
    out = library_route.fp8_product(x, upper, lower, bias, n, k)
    codes, scale = quantize_per_token(x)
    expected = codes.double() * scale.double() @ upper_to_float(plain_upper).double().T
    expected = expected if bias is None else expected + bias.double()
    assert (out.double() - expected).norm() < 6e-3 * expected.norm()  # the tensor cores' sums


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_sends_large_steps_to_a_library_and_graphs_replay_it(monkeypatch, mode):
    n, k = 1024, 2048
    _, _, upper, lower = packed(n, k)
    monkeypatch.setattr(library_route, "_from_tokens", {(n, k): {each: 64 for each in Mode}})
    ops.set_mode(mode)
    for tokens, product in ((63, library_route._portable), (64, library_route.PRODUCTS[mode])):
        x = torch.randn(tokens, k, device="cuda").half()
        expected = product(x, upper, lower, None, n, k)
        found = torch.ops.nestedfp.library_linear(x, upper, lower, None, n, k, True)
        assert torch.equal(found, expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = torch.ops.nestedfp.library_linear(x, upper, lower, None, n, k, True)
        graph.replay()
        assert torch.equal(replayed, expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_measurement_finds_that_both_compute_the_same(mode):
    n, k = 4096, 4096
    _, _, upper, lower = packed(n, k)
    weight = cuda_library.PackedWeight(upper, lower, n, k)
    ops.set_mode(mode)
    for tokens in library_route.TOKENS:
        assert library_route.agrees(mode, library_route.activations(tokens, k, upper.device), weight)


@pytest.mark.parametrize("mode", MODES)
def test_a_library_is_taken_from_where_it_is_faster(monkeypatch, mode):
    n, k = 4096, 4096
    _, _, upper, lower = packed(n, k)
    weights = [cuda_library.PackedWeight(upper, lower, n, k)]
    right = library_route.PRODUCTS[mode]

    def slow(*given):
        for _ in range(200):
            right(*given)
        return right(*given)

    monkeypatch.setitem(library_route.PRODUCTS, mode, slow)
    assert library_route._measured(mode, weights, 64) is None
    monkeypatch.setitem(library_route.PRODUCTS, mode, right)
    monkeypatch.setattr(library_route, "_portable", lambda *given: slow(*given))
    assert library_route._measured(mode, weights, 64) == library_route.TOKENS[0]
    assert ops.get_mode() is Mode.FP16
