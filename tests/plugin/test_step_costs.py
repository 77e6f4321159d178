"""Measured step costs: interpolation, the size from which FP8 pays, combining ranks."""

from dataclasses import replace

import pytest

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_costs import MIN_GAIN, MixedCosts, StepCost, StepCosts, slowest
from nestedfp.steps.step_rule import StepRule, choose

# FP8 loses at one token, is even at 4, and saves 40 % from 64 tokens on.
COSTS = StepCosts((StepCost(1, 10.0, 11.0), StepCost(4, 10.0, 10.0), StepCost(64, 20.0, 12.0)))


@pytest.mark.parametrize(
    ("tokens", "gain"), [(1, -0.1), (2, -1 / 15), (4, 0.0), (34, 1 - 11 / 15), (64, 0.4), (65, 0.4), (100_000, 0.4)]
)
def test_the_gain_is_interpolated_between_sizes_and_held_outside(tokens: int, gain: float) -> None:
    fp16_ms, fp8_ms = COSTS.times_ms(tokens)
    assert 1 - fp8_ms / fp16_ms == pytest.approx(gain)


@pytest.mark.parametrize(
    ("costs", "first"),
    [
        (COSTS, 64),
        (StepCosts((StepCost(1, 10.0, 5.0), StepCost(2, 10.0, 11.0), StepCost(4, 10.0, 5.0))), 4),
        (StepCosts((StepCost(1, 10.0, 5.0), StepCost(2, 10.0, 5.0))), 1),
        (StepCosts((StepCost(1, 10.0, 5.0), StepCost(2, 10.0, 10.0))), None),
    ],
)
def test_fp8_pays_from_the_size_behind_the_last_that_does_not_pay(costs: StepCosts, first: int | None) -> None:
    assert costs.fp8_pays_from() == first


def test_a_gain_within_the_noise_does_not_pay() -> None:
    assert not StepCosts((StepCost(1, 10.0, 10.0 * (1 - MIN_GAIN) + 0.01),)).fp8_pays(1)
    assert StepCosts((StepCost(1, 10.0, 10.0 * (1 - MIN_GAIN) - 0.01),)).fp8_pays(1)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    first = StepCosts((StepCost(1, 10.0, 6.0), StepCost(2, 10.0, 6.0))).report()
    second = StepCosts((StepCost(1, 9.0, 7.0), StepCost(2, 12.0, 5.0), StepCost(4, 1.0, 1.0))).report()
    assert slowest([first, second]) == StepCosts((StepCost(1, 10.0, 7.0), StepCost(2, 12.0, 6.0)))


def test_sizes_that_a_rank_did_not_measure_are_unknown() -> None:
    one, other = (StepCosts((StepCost(tokens, 2.0, 1.0),)).report() for tokens in (1, 2))
    assert [slowest(ranks) for ranks in ([], [None], [one, None], [one, other])] == [None] * 4


@pytest.mark.parametrize("rows", [(), (StepCost(2, 1.0, 1.0), StepCost(1, 1.0, 1.0)), (StepCost(1, 1.0, 1.0),) * 2])
def test_rows_must_ascend(rows: tuple[StepCost, ...]) -> None:
    with pytest.raises(ValueError, match="ascending and unique"):
        StepCosts(rows)


@pytest.mark.parametrize("fields", [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, float("nan"))])
def test_a_cost_that_cannot_be_is_refused(fields: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="two times above zero"):
        StepCost(*fields)


@pytest.mark.parametrize(
    ("tokens", "directive", "mode", "reason"),
    [
        (1, DirectiveMode.AUTO, Mode.FP16, "no_gain"),
        (64, DirectiveMode.AUTO, Mode.FP8, "step_budget"),
        (1, DirectiveMode.FP8, Mode.FP8, "directive"),  # an order is an order
    ],
)
def test_auto_leaves_fp8_alone_where_it_saves_nothing(
    tokens: int, directive: DirectiveMode, mode: Mode, reason: str
) -> None:
    assert choose(tokens, 2048, directive, StepRule(fp8_budget_fraction=0), COSTS) == (mode, reason)


MIXED = MixedCosts((16, 64), (128, 256), ((20.0, 24.0), (22.0, 30.0)))
WITH_MIXED = StepCosts((StepCost(1, 10.0, 6.0), StepCost(1024, 60.0, 30.0)), MIXED)


@pytest.mark.parametrize(
    ("exact", "fast", "ms"),
    [(16, 128, 20.0), (64, 256, 30.0), (40, 128, 21.0), (16, 192, 22.0), (40, 192, 24.0), (1, 5, 20.0), (3, 256, 24.0)],
)
def test_a_mixed_step_is_interpolated_and_below_the_smallest_costs_as_much(exact: int, fast: int, ms: float) -> None:
    assert WITH_MIXED.mixed_ms(exact, fast) == pytest.approx(ms)


def test_beyond_what_was_measured_a_mixed_step_costs_what_steps_of_one_precision_cost_more() -> None:
    exact_ms, fast_ms = (
        WITH_MIXED.times_ms(n)[i] - WITH_MIXED.times_ms(m)[i] for n, m, i in ((100, 64, 0), (600, 256, 1))
    )
    assert WITH_MIXED.mixed_ms(100, 600) == pytest.approx(30.0 + exact_ms + fast_ms)


def test_mixed_costs_travel_and_the_slowest_rank_counts() -> None:
    assert slowest([WITH_MIXED.report()]) == WITH_MIXED
    slower = replace(WITH_MIXED, mixed=replace(MIXED, ms=((19.0, 25.0), (22.0, 30.5))))
    found = slowest([WITH_MIXED.report(), slower.report()])
    assert found is not None
    assert found.mixed == replace(MIXED, ms=((20.0, 25.0), (22.0, 30.5)))


@pytest.mark.parametrize("other", [COSTS, replace(WITH_MIXED, mixed=MixedCosts((16,), (128,), ((1.0,),)))])
def test_an_engine_of_which_a_rank_has_no_mixed_steps_or_measured_others_has_none(other: StepCosts) -> None:
    found = slowest([WITH_MIXED.report(), replace(other, rows=WITH_MIXED.rows).report()])
    assert found is not None
    assert found.mixed_ms(16, 128) is None


@pytest.mark.parametrize(
    "fields",
    [
        ((), (1,), ()),
        ((2, 1), (1,), ((1.0,), (1.0,))),
        ((0,), (1,), ((1.0,),)),
        ((1,), (1, 2), ((1.0,),)),
        ((1,), (1,), ((0.0,),)),
    ],
)
def test_mixed_costs_that_are_no_grid_of_times_are_refused(fields: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="mixed costs need"):
        MixedCosts(*fields)
