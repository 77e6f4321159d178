"""What tests with models in their own process share."""

import time

import pytest


class Clocks:
    """How far the clocks of this process are ahead of where they stood, in seconds: a busy machine adds nothing to them."""

    def __init__(self):
        self.wall_s = 0.0  # of ``time.time``, which anybody may set
        self.steady_s = 0.0  # of the one that the scheduler decides by

    def pass_(self, seconds):
        """Let time pass."""
        self.wall_s += seconds
        self.steady_s += seconds


@pytest.fixture
def clocks(monkeypatch):
    """Clocks that stand still until a test sets them."""
    ahead, wall_s, steady_s = Clocks(), time.time(), time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    monkeypatch.setattr(time, "time", lambda: wall_s + ahead.wall_s)
    monkeypatch.setattr(time, "clock_gettime", lambda _: steady_s + ahead.steady_s)
    return ahead


@pytest.fixture(scope="module")
def experts_group(tmp_path_factory):
    """Have vLLM make the group of ranks that models with experts ask for: only the first model of a process can."""
    from test_model_kinds import QWEN3_MOE, load

    load(tmp_path_factory.mktemp("experts"), QWEN3_MOE)


@pytest.fixture
def fp16_again():
    """Leave FP16 mode behind, which is the process's."""
    from nestedfp.kernels import ops
    from nestedfp.modes import Mode

    yield
    ops.set_mode(Mode.FP16)


@pytest.fixture
def dtype_again():
    """Put PyTorch's default type back, which vLLM does not after a load that failed."""
    import torch

    yield
    torch.set_default_dtype(torch.float32)
