"""The operators' mode is the process's: a test that sets it leaves FP16 behind."""

import pytest


@pytest.fixture
def fp16_mode():
    from nestedfp.kernels import ops
    from nestedfp.modes import Mode

    ops.set_mode(Mode.FP16)
    yield
    ops.set_mode(Mode.FP16)
