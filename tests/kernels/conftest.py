"""What tests of operators share. Their mode is the process's: a test that sets it leaves FP16 behind."""

import pytest


@pytest.fixture
def fp16_mode():
    from nestedfp.kernels import ops
    from nestedfp.modes import Mode

    ops.set_mode(Mode.FP16)
    yield
    ops.set_mode(Mode.FP16)


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """The Hopper GEMMs' own sources, compiled for the emulated grid."""
    import hopper_emulator

    return hopper_emulator.Build(tmp_path_factory.mktemp("hopper"))


@pytest.fixture(scope="module")
def hopper_operators():
    """The CUDA operators on a Hopper; skips elsewhere."""
    import torch

    from nestedfp.kernels import cuda_ops

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    cuda_ops.load()
    torch.manual_seed(0)
