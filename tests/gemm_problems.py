"""Products of a NestedFP weight with activations, with the result in double precision."""

from dataclasses import dataclass

import torch

EXACT, UPPER_FP16, FP8 = range(3)  # PortableOperands of csrc/cuda/portable/tile.h
OPERANDS = {"exact": EXACT, "upper_fp16": UPPER_FP16, "fp8": FP8}


@dataclass(frozen=True)
class Problem:
    """Operands of one product; codes are E4M3 as uint8 [m, k], and ``x`` is then None."""

    upper: torch.Tensor
    lower: torch.Tensor
    x: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    outliers: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # rows, columns, deltas


def make(operands, m, n, k, seed=0, bias=True, integers=False):
    """A problem and its result [m, n] in double precision. With ``integers`` every sum is exact, in whatever order."""
    from quantizer_reference import quantize_per_token

    from nestedfp.format import upper_to_float
    from nestedfp.kernels import ops

    generator = torch.Generator().manual_seed(seed)
    if integers:  # steps of 1/64 up to 3/64: both planes hold them exactly, whatever they are
        weight = torch.randint(-3, 4, (n, k), generator=generator) / 64
        x = torch.randint(-4, 5, (m, k), generator=generator).float()
    else:
        weight, x = torch.randn(n, k, generator=generator) * 0.05, torch.randn(m, k, generator=generator)
    weight, x = weight.half(), x.half()
    upper, lower, _ = ops.split(weight)
    add = torch.randint(-8, 9, (n,), generator=generator).half() if bias else None
    if operands == FP8:
        codes, scale = quantize_per_token(x)
        if integers:
            codes, scale = x.to(torch.float8_e4m3fn), torch.ones(m, 1)
        problem = Problem(upper, lower, codes=codes.view(torch.uint8), scale=scale, bias=add)
        expected = codes.double() * scale.double() @ upper_to_float(upper).double().T
    else:
        problem = Problem(upper, lower, x=x, bias=add)
        stored = weight if operands == EXACT else upper_to_float(upper)
        expected = x.double() @ stored.double().T
    return problem, expected + add.double() if bias else expected


def with_outliers(m=37, n=300, k=640):
    """A problem with weights far beyond 1.75, and its result [m, n] in double precision, which FP16 holds.

    Rounded to FP16 without them, sums near 2048 lose their odd units, which then stay once -1024 * 2 has been added.
    """
    from nestedfp.nested_weight import nest

    generator = torch.Generator().manual_seed(0)
    weight, x = torch.zeros(n, k), torch.zeros(m, k)
    x[:, 0], x[:, 1], x[:, 2] = 2048, torch.randint(1, 32, (m,), generator=generator) * 2 + 1, 2
    weight[:, :2] = 1
    weight[::3, 2], weight[::7, 9], weight[-1, -1] = -1024, 3.25, -2
    nested = nest(weight.half())
    lists = nested.outlier_rows, nested.outlier_cols, nested.outlier_deltas
    problem = Problem(nested.upper, nested.lower, x=x.half(), outliers=lists)
    return problem, x.double() @ weight.double().T


def every_value():
    """A weight [127, 254] of all 32,258 values that the format holds, in some order."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.float16)
    every = every[every.abs() <= 1.75]
    assert every.numel() == 32258
    return every[torch.randperm(32258, generator=torch.Generator().manual_seed(1))].view(127, 254)


def relative_error(out, expected):
    """The largest error over the root mean square of what was expected."""
    return (out.double() - expected).abs().max() / expected.square().mean().sqrt()
