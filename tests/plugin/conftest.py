"""What tests with models in their own process share."""

import pytest


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
