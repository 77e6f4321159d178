"""Whether an engine fills up: by hand, and in a simulated burst beyond what FP8 does."""

from nestedfp.modes import Mode
from nestedfp.steps.deadlines.step_fill import FillWatch
from nestedfp.steps.step_costs import StepCost, StepCosts
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import StepTimes

COSTS = StepCosts((StepCost(1, 10.0, 5.0), StepCost(100, 20.0, 10.0), StepCost(1000, 110.0, 55.0)))
RULE = StepRule(ttft_deadline_s=0.1, tpot_deadline_s=0.04, fill_horizon_s=4.0)


def grown(watch: FillWatch, rule: StepRule, times: StepTimes, *, per_s: float, until_s: float, first: int = 0) -> bool:
    """Whether it fills up after a step every 20 ms, with so many more requests in each second."""
    answer = None
    for step in range(round(until_s * 50) + 1):
        answer = watch.late(rule, times, 100.0 + step / 50, round(first + per_s * step / 50), 0.0)
    return answer == "fill_slack"


def test_it_fills_up_when_the_growth_of_the_last_second_reaches_the_limit_within_the_horizon() -> None:
    times = StepTimes(None)  # nothing measured: only the limit of requests counts
    assert not grown(FillWatch(256), RULE, times, per_s=40, until_s=1)  # 40 + 4 x 25
    assert grown(FillWatch(256), RULE, times, per_s=40, until_s=3)  # 120 + 4 x 38
    assert not grown(FillWatch(256), RULE, times, per_s=0, until_s=3, first=250)  # a closed loop just below the limit
    assert not grown(FillWatch(256), RULE, times, per_s=-10, until_s=3, first=250)


def test_growth_is_forgotten_when_it_ends() -> None:
    watch, times = FillWatch(256), StepTimes(None)
    assert grown(watch, RULE, times, per_s=60, until_s=2)
    assert not watch.late(RULE, times, 107.0, 120, 0.0)  # five seconds later, and no request more


def test_a_single_arrival_after_a_long_rest_is_no_growth() -> None:
    watch, times = FillWatch(8), StepTimes(None)
    assert not watch.late(RULE, times, 1000.0, 1, 0.0)
    assert not watch.late(RULE, times, 2000.0, 3, 0.0)


def test_many_more_than_fp8_could_carry_within_the_decodes_share_of_the_tpot_deadline_is_full_too() -> None:
    # 24 ms of an FP8 step: 380 requests by the costs
    assert not grown(FillWatch(1024), RULE, StepTimes(COSTS), per_s=65, until_s=2)  # 130 + 4 x 56 = 355
    assert grown(FillWatch(1024), RULE, StepTimes(COSTS), per_s=75, until_s=2)  # 150 + 4 x 65 = 409
    without = StepRule(ttft_deadline_s=0.1, fill_horizon_s=4.0)
    assert not grown(FillWatch(1024), without, StepTimes(COSTS), per_s=75, until_s=2)


def test_an_engine_whose_every_step_is_long_is_not_full_with_one_request() -> None:
    slow = StepTimes(
        StepCosts((StepCost(1, 45.0, 28.0), StepCost(100, 55.0, 33.0)))
    )  # three fifths of the deadline are 24 ms
    assert not grown(FillWatch(1024), RULE, slow, per_s=0, until_s=2, first=1)
    assert not grown(FillWatch(1024), RULE, slow, per_s=0, until_s=2, first=50)  # 30.5 ms
    assert grown(
        FillWatch(1024), RULE, slow, per_s=0, until_s=2, first=70
    )  # 31.5, and a quarter of what is left ends at 31
    hopeless = StepTimes(StepCosts((StepCost(1, 80.0, 41.0), StepCost(100, 90.0, 46.0))))
    assert grown(FillWatch(1024), RULE, hopeless, per_s=0, until_s=2, first=1)  # FP8 itself is too slow


def test_what_steps_take_beyond_their_cost_grows_with_the_requests() -> None:
    times = StepTimes(COSTS)
    for _ in range(50):
        times.took(Mode.FP8, 100, 0.014, with_prompts=False)  # 10 ms measured at the start
    assert abs(times.of_decodes_s(Mode.FP8, 200, 100) - (0.015 + 2 * 0.004)) < 1e-5
    assert grown(FillWatch(1024), RULE, times, per_s=65, until_s=2)


def test_what_prompts_take_beyond_their_cost_is_not_taken_for_decodes() -> None:
    times = StepTimes(COSTS)
    for _ in range(50):
        times.took(Mode.FP16, 1000, 0.15, with_prompts=True)  # the cost was measured on an idle card
    assert times.predicted_s(Mode.FP16, 1000, with_prompts=True) > 0.149
    assert times.of_decodes_s(Mode.FP8, 200, 100) == StepTimes(COSTS).of_decodes_s(Mode.FP8, 200, 100)
    assert not grown(FillWatch(1024), RULE, times, per_s=65, until_s=2)


def kv_grown(*, per_s: float, until_s: float, first: float = 0.0, rule: StepRule = RULE) -> bool:
    """The same for the share of the KV cache, with one request inside."""
    watch, answer = FillWatch(256), None
    for step in range(round(until_s * 50) + 1):
        answer = watch.late(rule, StepTimes(None), 100.0 + step / 50, 1, first + per_s * step / 50)
    return answer == "fill_slack"


def test_it_fills_up_when_the_kv_cache_will_be_full_although_there_are_places() -> None:
    assert not kv_grown(per_s=0.1, until_s=4)  # 0.4 + 4 x 0.09
    assert kv_grown(per_s=0.15, until_s=4)  # 0.6 + 4 x 0.13
    assert not kv_grown(per_s=0.0, until_s=30, first=0.95)  # nearly full, and stays so
    assert not kv_grown(per_s=-0.05, until_s=4, first=0.99)
    assert not kv_grown(per_s=0.15, until_s=4, rule=StepRule(tpot_deadline_s=0.04))


def test_one_long_prompt_does_not_fill_the_kv_cache() -> None:
    watch, times = FillWatch(256), StepTimes(None)
    for step in range(100):
        assert not watch.late(RULE, times, 100.0 + step / 50, 4, 0.4)
    assert not watch.late(RULE, times, 102.02, 5, 0.5), "a tenth of the cache at once"


def test_without_a_horizon_nothing_fills_up() -> None:
    assert not grown(FillWatch(4), StepRule(tpot_deadline_s=0.04), StepTimes(COSTS), per_s=500, until_s=2)
