"""What the quantiser and the kernels with it inside must write, from nestedfp/kernels/activations.py."""

import torch

from nestedfp.kernels.activations import quantize_per_token

COLUMNS = torch.arange(64)
# Where a block's columns lie in the packed K order (csrc/cuda/kernels/layout.h).
POSITIONS = 16 * (COLUMNS // 2 % 4) + 4 * (COLUMNS // 16) + COLUMNS // 8 % 2 + COLUMNS % 2 * 2


def quantised(x):
    """Codes [rows, columns padded to 64] in the packed K order, and scales, of a CPU tensor [rows, columns]."""
    codes, scale = quantize_per_token(x)
    rows, columns = x.shape
    padded = torch.zeros(rows, -(-columns // 64) * 64, dtype=torch.uint8)
    padded[:, :columns] = codes.view(torch.uint8)
    packed = torch.empty(rows, padded.shape[1] // 64, 64, dtype=torch.uint8)
    packed[:, :, POSITIONS] = padded.view(packed.shape)
    return packed.view(padded.shape), scale.flatten()


def check_codes(halves, carrier, scales):
    """Compare an FP8 carrier with what the quantiser makes of the FP16 result."""
    codes = carrier.cpu().view(torch.uint8).flatten()[: halves.numel()].view(halves.shape)
    expected_codes, expected_scales = quantised(halves.cpu())
    assert torch.equal(scales.cpu(), expected_scales)
    assert torch.equal(codes, expected_codes)


def assert_close(actual, expected):
    """Equal but for sums in another order: a rounding to FP16 either way, before and after the weight."""
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-6, rtol=2.5e-3)
    assert (actual.cpu() != expected).float().mean() < 0.02
