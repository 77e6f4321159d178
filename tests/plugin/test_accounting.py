"""Token counts per precision: prompt tokens by the step that computed them, completion tokens by the step that sampled."""

import pytest

from nestedfp.modes import Mode
from nestedfp.vllm_plugin.scheduling.accounting import EngineTotals, TokenCounts, total
from nestedfp.vllm_plugin.scheduling.pin import parse_asked


def test_engine_totals_count_steps_tokens_and_switches():
    totals = EngineTotals()
    for rows in ((5, 0), (1, 0), (0, 7), (2, 0)):
        totals.step(*rows, "directive")
    assert totals.fp8_reasons == {"directive": 1}
    assert totals.tokens == {Mode.FP16: 8, Mode.FP8: 7}
    assert totals.steps == {Mode.FP16: 3, Mode.FP8: 1}
    assert totals.switches == 2
    totals.took(Mode.FP8, 10.0)
    totals.took(Mode.FP8, 20.0, weight=0.5)
    assert totals.step_ms == {Mode.FP16: None, Mode.FP8: 15.0}
    totals.took(Mode.FP8, 5000.0, weight=0.5)
    assert totals.step_ms[Mode.FP8] == 22.5, "one stall counts as twice the present value"
    totals.forget_durations()
    assert totals.step_ms == {Mode.FP16: None, Mode.FP8: None}
    assert totals.tokens == {Mode.FP16: 8, Mode.FP8: 7}, "counters stay"
    totals.step(1, 2, "fast")
    assert (totals.tokens, totals.steps_mixed) == ({Mode.FP16: 9, Mode.FP8: 9}, 1)
    assert totals.steps == {Mode.FP16: 3, Mode.FP8: 1}, "a mixed step is a third kind"


def test_counts_of_several_sequences_are_added_up():
    assert total([TokenCounts(4, 0, 2, 1, 3, 0), TokenCounts(0, 5, 0, 3, 1, 2)]) == (4, 5, 2, 4, 4, 2, 0)
    assert total([]) == TokenCounts()


@pytest.mark.parametrize(
    ("given", "asked"),
    [(None, None), ({}, None), ({"other": 1}, None)]
    + [({"precision": value}, value) for value in ("exact", "fast", "auto")]
    + [({"precision": "fp16"}, "exact")],
)
def test_a_request_asks_for_one_of_three_or_by_an_alias(given, asked):
    assert parse_asked(given) == asked


@pytest.mark.parametrize("wrong", ["fp8", "EXACT", "mixed", "", 16, ["exact"], {}])
def test_another_precision_is_refused_with_the_three(wrong):
    with pytest.raises(ValueError, match=r"must be 'exact' .*'fast' .*'auto' .*got"):
        parse_asked({"precision": wrong})
