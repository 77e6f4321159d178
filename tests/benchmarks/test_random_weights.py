"""The weights of engine benchmarks: they reach vLLM's loader, and leave every layer something to compute."""

import warnings

import pytest
import torch
from torch.nn import functional

from benchmarks.weights import random_weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party imports, not ours
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import dummy_loader

HIDDEN, INTERMEDIATE = 1024, 2048


class MLP(torch.nn.Module):
    """A norm and an MLP as in a Llama."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.empty(HIDDEN, dtype=torch.float16), requires_grad=False)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False, dtype=torch.float16)
        self.down = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False, dtype=torch.float16)
        self.register_buffer("positions", torch.arange(4.0))

    def forward(self, x):
        """Return what the last layer multiplies, and its product."""
        gate, up = self.gate_up(functional.rms_norm(x, (HIDDEN,), self.norm)).chunk(2, -1)
        inner = functional.silu(gate) * up
        return inner, self.down(inner)


def loaded():
    model = MLP()
    with torch.no_grad():
        dummy_loader.DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(model, None)
        return model, *model(torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(1)).half())


@pytest.fixture
def installed(monkeypatch):
    for name in ("initialize_dummy_weights", "initialize_single_dummy_weight"):
        monkeypatch.setattr(dummy_loader, name, getattr(dummy_loader, name))
    random_weights.install()


def test_activations_keep_their_magnitude(installed):
    model, inner, out = loaded()
    assert inner.count_nonzero() > 0.99 * inner.numel()
    assert 0.05 < out.float().std() < 5
    assert model.gate_up.weight.detach().float().std() == pytest.approx(random_weights.STANDARD_DEVIATION, rel=0.01)
    assert bool((model.norm == 1).all())
    assert model.positions.tolist() == [0, 1, 2, 3], "no parameter"


def test_equal_shapes_have_equal_weights_on_every_start(installed):
    (first, *_), (second, *_) = loaded(), loaded()
    assert torch.equal(first.down.weight, second.down.weight)


def test_what_is_not_there_yet_is_left_alone(installed):
    random_weights.fill(torch.empty(2, 2, device="meta"))
    codes = torch.arange(4, dtype=torch.uint8).view(2, 2)
    random_weights.fill(codes)
    assert codes.tolist() == [[0, 1], [2, 3]]
