"""How long an engine's steps take in each precision, by size: measured once at start-up, asked for every step.

Pure and standard library only, like nestedfp/steps/step_rule.py, which uses it to leave FP8 alone where it saves nothing: FP8
reads half the weight bytes but quantises its activations first, so small steps of small models may gain little or lose.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MIN_GAIN = 0.05  # FP8 pays when it saves at least this share of the FP16 step: above the noise of a short measurement


@dataclass(frozen=True, slots=True)
class StepCost:
    """The model's time in a step of ``tokens`` tokens."""

    tokens: int
    fp16_ms: float
    fp8_ms: float

    def __post_init__(self) -> None:
        if self.tokens < 1 or not self.fp16_ms > 0 or not self.fp8_ms > 0:
            raise ValueError(f"a step cost needs at least one token and two times above zero, got {self}")


@dataclass(frozen=True, slots=True)
class MixedCosts:
    """The model's times in mixed steps, of every number of exact tokens beside every number of fast ones.

    Attributes:
        exact_tokens, fast_tokens: at least one each, ascending.
        ms: [exact][fast], above zero.
    """

    exact_tokens: tuple[int, ...]
    fast_tokens: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        axes = (self.exact_tokens, self.fast_tokens)
        is_grid = [len(row) for row in self.ms] == [len(self.fast_tokens)] * len(self.exact_tokens)
        if not all(axis and list(axis) == sorted(set(axis)) and axis[0] > 0 for axis in axes) or not is_grid:
            raise ValueError(f"mixed costs need ascending numbers of tokens and a time for each pair, got {self}")
        if not all(ms > 0 for row in self.ms for ms in row):
            raise ValueError(f"mixed costs need times above zero, got {self}")

    def ms_within(self, exact_tokens: int, fast_tokens: int) -> float:
        """Return the time of a mixed step, interpolated; outside the grid that of its edge."""
        row, down = _place(self.exact_tokens, exact_tokens)
        column, right = _place(self.fast_tokens, fast_tokens)
        rows = [self.ms[row], self.ms[min(row + 1, len(self.ms) - 1)]]
        first, second = (ms[column] + right * (ms[min(column + 1, len(ms) - 1)] - ms[column]) for ms in rows)
        return first + down * (second - first)

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> "MixedCosts":
        """Return them from their fields, as ``StepCosts.report`` and JSON have them."""
        return cls(tuple(fields["exact_tokens"]), tuple(fields["fast_tokens"]), tuple(map(tuple, fields["ms"])))


def _place(axis: Sequence[int], value: int) -> tuple[int, float]:
    """Return the index of the last number on an axis up to ``value``, and the share of the way to the next one."""
    index = max(0, bisect_left(axis, value + 1) - 1)
    if index + 1 == len(axis) or value <= axis[index]:
        return index, 0.0
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs by step size.

    Attributes:
        rows: at least one, ascending and unique in ``tokens``.
        mixed: of steps with exact and fast rows; None: this engine cannot run them.
    """

    rows: tuple[StepCost, ...]
    mixed: MixedCosts | None = None

    def __post_init__(self) -> None:
        sizes = [row.tokens for row in self.rows]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError(f"step costs must be ascending and unique in tokens and not empty, got {sizes}")

    def mixed_ms(self, exact_tokens: int, fast_tokens: int) -> float | None:
        """Return what a mixed step takes in milliseconds; None: this engine cannot run one.

        Times between measured numbers of tokens are interpolated. Below the smallest its time holds, above the largest what a
        step of one precision takes more is added.
        """
        if self.mixed is None:
            return None
        most_exact, most_fast = self.mixed.exact_tokens[-1], self.mixed.fast_tokens[-1]
        ms = self.mixed.ms_within(exact_tokens, fast_tokens)
        if exact_tokens > most_exact:
            ms += self.times_ms(exact_tokens)[0] - self.times_ms(most_exact)[0]
        if fast_tokens > most_fast:
            ms += self.times_ms(fast_tokens)[1] - self.times_ms(most_fast)[1]
        return ms

    def times_ms(self, tokens: int) -> tuple[float, float]:
        """Return what a step of this size takes in FP16 and in FP8, in milliseconds.

        Times between two measured sizes are interpolated. Below the smallest its time holds, since the weights are read
        all the same; above the largest, time grows with the tokens.
        """
        after = bisect_left(self.rows, tokens, key=lambda row: row.tokens)
        high = self.rows[min(after, len(self.rows) - 1)]
        low = self.rows[max(after - 1, 0)]
        if high.tokens <= tokens:
            return high.fp16_ms * (tokens / high.tokens), high.fp8_ms * (tokens / high.tokens)
        if low.tokens >= tokens:
            return low.fp16_ms, low.fp8_ms
        part = (tokens - low.tokens) / (high.tokens - low.tokens)
        return low.fp16_ms + part * (high.fp16_ms - low.fp16_ms), low.fp8_ms + part * (high.fp8_ms - low.fp8_ms)

    def fp8_pays(self, tokens: int) -> bool:
        """Whether FP8 saves enough in a step of this size to be worth its rounding."""
        fp16_ms, fp8_ms = self.times_ms(tokens)
        return 1 - fp8_ms / fp16_ms >= MIN_GAIN

    def fp8_pays_from(self) -> int | None:
        """Return the smallest measured size from which on FP8 pays at every measured size; None: it pays at no end."""
        paying = None
        for row in reversed(self.rows):
            if not self.fp8_pays(row.tokens):
                break
            paying = row.tokens
        return paying

    def as_lists(self) -> list[list[float]]:
        """Return ``[tokens, fp16_ms, fp8_ms]`` for every row."""
        return [[row.tokens, row.fp16_ms, row.fp8_ms] for row in self.rows]

    def report(self) -> dict[str, Any]:
        """Return everything in the form in which costs travel between processes."""
        return {"steps": self.as_lists(), "mixed": None if self.mixed is None else asdict(self.mixed)}


def slowest(ranks: Sequence[Mapping[str, Any] | None]) -> StepCosts | None:
    """Combine the measurements of all tensor-parallel ranks: a step takes as long as its slowest rank.

    Args:
        ranks: ``report`` of every rank, or None from one that measured nothing.

    Returns:
        The costs of the sizes that every rank measured, or None when there are none.
    """
    reports = [rank or {"steps": (), "mixed": None} for rank in ranks]
    tables = [{int(tokens): (fp16, fp8) for tokens, fp16, fp8 in report["steps"]} for report in reports]
    common = sorted(set.intersection(*map(set, tables))) if tables else []
    rows = tuple(
        StepCost(tokens, max(t[tokens][0] for t in tables), max(t[tokens][1] for t in tables)) for tokens in common
    )
    return StepCosts(rows, _slowest_mixed([report["mixed"] for report in reports])) if rows else None


def _slowest_mixed(ranks: Sequence[Mapping[str, Any] | None]) -> MixedCosts | None:
    grids = [MixedCosts.of_dict(rank) for rank in ranks if rank is not None]
    if len(grids) < len(ranks) or len({(grid.exact_tokens, grid.fast_tokens) for grid in grids}) != 1:
        return None
    ms = tuple(
        tuple(map(max, *rows)) if len(grids) > 1 else rows[0] for rows in zip(*(g.ms for g in grids), strict=True)
    )
    return MixedCosts(grids[0].exact_tokens, grids[0].fast_tokens, ms)
