"""The split of a weight: 16 bits of FP16 into two planes of 8, by the format's own code."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from docs.draw.style import FP8, FP16, INK, NEUTRAL, canvas, save
from nestedfp.format import join, split

EXAMPLE = -(1 + 0b1010110010 / 1024) / 8  # rounds down: the planes show the weight's own bits
CELL = 0.36
SIGN, EXPONENT, KEPT, DROPPED = "#8250df", NEUTRAL, FP8, FP16


def draw() -> Path:
    """Write ``bits.svg``."""
    weight = torch.tensor([EXAMPLE], dtype=torch.float16)
    upper, lower = split(weight)
    assert torch.equal(join(upper, lower), weight)
    bits = f"{weight.view(torch.int16).item() & 0xFFFF:016b}"
    figure, axes = canvas(8.4, 3.3)
    kinds = [SIGN, *[EXPONENT] * 5, *[KEPT] * 3, *[DROPPED] * 7]
    names = ["s", *(f"E{i}" for i in range(1, 6)), *(f"M{i}" for i in range(1, 11))]
    left = (8.4 - 16 * CELL) / 2
    _row(axes, left, 2.3, bits, kinds, names)
    title = f"one FP16 weight, {weight.item():.6g}: 16 bits, stored once"
    axes.text(left, 2.95, title, size=10, weight="bold", color=INK)
    half = left - 0.75, left + 8 * CELL + 0.75
    _row(axes, half[0], 0.8, f"{upper.item():08b}", [SIGN, *[EXPONENT] * 4, *[KEPT] * 3], ["s", *names[2:9]])
    _row(axes, half[1], 0.8, f"{lower.item():08b}", [KEPT, *[DROPPED] * 7], names[8:])
    value = upper.view(torch.float8_e4m3fn).float().item() / 256
    axes.text(half[0], 1.45, "upper plane: an E4M3 number", size=9, weight="bold", color=FP8)
    fp8 = f"FP8 mode reads this alone: {value:.6g},\nthe nearest one. E1 is 0 where |w| ≤ 1.75"
    axes.text(half[0], 0.42, fp8, size=8, va="center", color=INK)
    axes.text(half[1], 1.45, "lower plane: what FP8 does not need", size=9, weight="bold", color=FP16)
    fp16 = "FP16 mode reads both and gets all 16 bits\nback: M3 tells whether rounding carried"
    axes.text(half[1], 0.42, fp16, size=8, va="center", color=INK)
    for x, target in ((left + 4.5 * CELL, half[0] + 4 * CELL), (left + 12 * CELL, half[1] + 4 * CELL)):
        arrow = {"arrowstyle": "-|>", "color": NEUTRAL, "lw": 1.2}
        axes.annotate("", xy=(target, 1.68), xytext=(x, 2.24), arrowprops=arrow)
    return save(figure, "bits")


def _row(axes: Axes, left: float, bottom: float, bits: str, colours: list[str], names: list[str]) -> None:
    for i, (bit, colour, name) in enumerate(zip(bits, colours, names, strict=True)):
        x = left + i * CELL
        axes.add_patch(Rectangle((x, bottom), CELL, 0.38, facecolor=colour + "2a", edgecolor=colour, lw=1.1))
        axes.text(x + CELL / 2, bottom + 0.19, bit, ha="center", va="center", size=10, family="monospace", color=INK)
        axes.text(x + CELL / 2, bottom + 0.47, name, ha="center", va="center", size=6.5, color=colour)
