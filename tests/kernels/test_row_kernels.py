"""The GPU's quantiser, norms and activation, run here without one: their sources on an emulated grid under sanitizers.

Run: ``pytest -q tests/kernels/test_row_kernels.py``
"""

import struct

import emulated
import numpy as np
import pytest
import torch

QUANTIZE, NORM, ADD_NORM, SILU = range(4)  # of tests/emulator/rows.cpp
SOURCES = [f"cuda/kernels/{name}.cu" for name in ("quantize", "norm", "silu")]
SOURCES.append(emulated.EMULATOR / "hopper.cpp")
EPSILON = 1e-5


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return emulated.build(tmp_path_factory.mktemp("rows") / "rows", "rows.cpp", SOURCES, *emulated.SANITIZERS)


def run(program, kernel, m, k, *arrays, exact=None, pitch=None, seed=0):
    """Return the bytes of the carrier (or the quantiser's codes), the scales, and the sum of ADD_NORM; ``exact``: rows, or all."""
    given = struct.pack("6q", kernel, m if exact is None else exact, m, k, pitch or k, seed)
    given += b"".join(array.contiguous().numpy().tobytes() for array in arrays)
    ended = emulated.run(program, given)
    assert ended.returncode == 0, ended.stderr.decode()[:3000]
    carrier_bytes = m * -(-k // 64) * 64 if kernel == QUANTIZE else 2 * m * k
    out = torch.from_numpy(np.frombuffer(ended.stdout, dtype=np.uint8).copy())
    sum_bytes = 2 * m * k if kernel == ADD_NORM else 0
    carrier, scales, added = out.split([carrier_bytes, 4 * m, sum_bytes])
    return carrier, scales.view(torch.float32), added.view(torch.float16).view(-1, k)


def packed_codes(x):
    """What nestedfp.kernels.activations makes of ``x``, in the order of the packed upper plane, and the scales."""
    from quantizer_reference import quantize_per_token

    m, k = x.shape
    codes, scale = quantize_per_token(x)
    padded = torch.zeros(m, -(-k // 64) * 64, dtype=torch.uint8)
    padded[:, :k] = codes.view(torch.uint8)
    return padded.view(m, -1, 64)[:, :, emulated.COLUMNS].reshape(-1), scale.float().flatten()


def activations(m, k, seed=0):
    """Rows of very different magnitudes, one of zeros among them."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-4, 3, m)[:, None]
    x[m // 2] = 0
    return x.half()


@pytest.mark.parametrize(
    ("m", "k", "pitch"),
    [
        (3, 64, None),
        (5, 520, None),
        (4, 523, 523),  # rows that begin at odd addresses
        (2, 4096, 4104),
        (257, 72, None),  # many tokens: fewer threads, more columns each
        (1, 20_000, None),
        (1, 70_008, None),
    ],
)
def test_the_quantiser_gives_the_reference_s_codes_and_scales(program, m, k, pitch):
    x = activations(m, k)
    rows = torch.full((m, pitch or k), torch.nan).half()
    rows[:, :k] = x
    codes, scales, _ = run(program, QUANTIZE, m, k, rows.flatten()[: (m - 1) * (pitch or k) + k], pitch=pitch)
    expected_codes, expected_scales = packed_codes(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(codes, expected_codes)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_token_that_is_not_finite_has_no_scale_and_spoils_no_other(program, bad):
    x = activations(4, 200)
    x[1, 77] = bad
    codes, scales, _ = run(program, QUANTIZE, 4, 200, x)
    assert scales[1].isnan()
    x[1] = 0
    expected_codes, expected_scales = packed_codes(x)
    others = [0, 2, 3]
    assert torch.equal(scales[others], expected_scales[others])
    assert torch.equal(codes.view(4, -1)[others], expected_codes.view(4, -1)[others])


def norm_inputs(m, k):
    generator = torch.Generator().manual_seed(k)
    x, residual = (torch.randn(m, k, generator=generator).half() for _ in range(2))
    weight = (1 + 0.2 * torch.randn(k, generator=generator)).half()
    return x, weight, residual


def normed(x, weight):
    """RMSNorm as vLLM defines it: the norm in FP32, rounded to FP16, times the weight in FP16."""
    values = x.double()
    scaled = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPSILON)
    return scaled.half() * weight


@pytest.mark.parametrize(("m", "k"), [(3, 64), (2, 1024), (4, 5120), (260, 128), (1, 16_384)])
@pytest.mark.parametrize("kernel", [NORM, ADD_NORM])
def test_norms_write_fp16_or_what_the_quantiser_makes_of_it(program, kernel, m, k):
    x, weight, residual = norm_inputs(m, k)
    arrays = (x, weight, residual) if kernel == ADD_NORM else (x, weight)
    carrier, _, added = run(program, kernel, m, k, *arrays)
    out = carrier.view(torch.float16).view(m, k)
    summed = x.float() + residual.float() if kernel == ADD_NORM else x.float()
    # The norm's input is the sum before it is rounded.
    assert ((out - normed(summed, weight)).abs() <= out.abs() * 2**-9 + 1e-4).all()
    if kernel == ADD_NORM:
        assert torch.equal(added, summed.half())
    coded, scales, added = run(program, kernel, m, k, *arrays, exact=0, seed=1)
    expected_codes, expected_scales = packed_codes(out)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(coded[: m * k], expected_codes)
    if kernel == ADD_NORM:
        assert torch.equal(added, summed.half())


@pytest.mark.parametrize(("m", "k"), [(3, 64), (2, 14_336), (260, 128)])
def test_silu_writes_fp16_or_what_the_quantiser_makes_of_it(program, m, k):
    x = activations(m, 2 * k, seed=k).clamp(-50, 50)
    gate, up = x[:, :k].double(), x[:, k:]
    carrier, _, _ = run(program, SILU, m, k, x)
    out = carrier.view(torch.float16).view(m, k)
    expected = (gate / (1 + torch.exp(-gate))).half() * up
    assert ((out - expected).abs() <= expected.abs() * 2**-9 + 1e-6).all()
    coded, scales, _ = run(program, SILU, m, k, x, exact=0, seed=1)
    expected_codes, expected_scales = packed_codes(out)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(coded[: m * k], expected_codes)


@pytest.mark.parametrize(("m", "k", "exact"), [(3, 64, 1), (5, 14_336, 4), (260, 128, 50), (7, 8192, 2)])
@pytest.mark.parametrize("kernel", [NORM, ADD_NORM, SILU])
def test_a_carrier_of_both_kinds_of_rows_has_the_bits_of_those_of_one_kind(program, kernel, m, k, exact):
    x, weight, residual = norm_inputs(m, k)
    gated = activations(m, 2 * k, seed=k).clamp(-50, 50)
    arrays = {NORM: (x, weight), ADD_NORM: (x, weight, residual), SILU: (gated,)}[kernel]
    halves, _, summed = run(program, kernel, m, k, *arrays)
    codes, scales, _ = run(program, kernel, m, k, *arrays, exact=0)
    both, some_scales, added = run(program, kernel, m, k, *arrays, exact=exact, seed=1)
    rest = (m - exact) * k
    assert torch.equal(both[: 2 * k * exact], halves[: 2 * k * exact])
    assert torch.equal(both[2 * k * exact :][:rest], codes[k * exact :][:rest])
    assert (both[2 * k * exact + rest :] == 0xFF).all(), "behind the codes nothing is written"
    assert torch.equal(some_scales[exact:], scales[exact:])
    assert torch.equal(added, summed)


def test_order_of_threads_changes_no_bit(program):
    x, weight, residual = norm_inputs(2, 2048)
    runs = [run(program, ADD_NORM, 2, 2048, x, weight, residual, exact=0, seed=seed) for seed in range(4)]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_codes_are_divided_as_a_division_rounds(tmp_path):
    """Every FP16 number by every scale that a token with it can have: ``quotient`` in row_codes.cuh."""
    program = emulated.build(tmp_path / "quotients", "quotients.cpp", [emulated.EMULATOR / "hopper.cpp"], "-O2")
    ended = emulated.run(program, b"")
    assert ended.returncode == 0, ended.stdout.decode()[:1000] + ended.stderr.decode()[:1000]
    assert int(ended.stdout.split()[0]) == 503_856_640
