"""Token counts per precision: prompt tokens by the step that computed them, completion tokens by the step that sampled."""

import pytest

from nestedfp.modes import Mode
from nestedfp.vllm_plugin.scheduling.accounting import EngineTotals, RequestTokens, TokenCounts, total, usage_of
from nestedfp.vllm_plugin.scheduling.pin import parse_asked


def test_a_chunked_prompt_is_split_by_the_mode_of_each_chunk():
    tokens = RequestTokens()
    tokens.computed(Mode.FP16, start=0, count=6, prompt_tokens=10)
    tokens.computed(Mode.FP8, start=6, count=4, prompt_tokens=10)
    tokens.completion_fp8 += 1
    tokens.computed(Mode.FP16, start=10, count=1, prompt_tokens=10)  # a decode step computes no prompt token
    assert usage_of(tokens.counts(completion_tokens=2)) == {
        "prompt": {"fp16": 6, "fp8": 4, "cached": {"fp16": 0, "fp8": 0}},
        "completion": {"fp16": 1, "fp8": 1},
    }


def test_tokens_from_the_cache_are_told_by_the_precision_that_wrote_them():
    tokens = RequestTokens()
    tokens.begins(16, exact=10, prompt_tokens=21)
    tokens.computed(Mode.FP8, start=16, count=5, prompt_tokens=21)
    assert usage_of(tokens.counts(0))["prompt"] == {"fp16": 0, "fp8": 5, "cached": {"fp16": 10, "fp8": 6}}


def test_a_resumed_request_that_reads_its_own_completion_from_the_cache_counts_its_prompt_only():
    tokens = RequestTokens()
    tokens.begins(32, exact=32, prompt_tokens=21)
    assert tokens.counts(12) == TokenCounts(cached_fp16=21, completion_fp16=12)


def test_a_preempted_request_counts_its_prompt_anew_and_keeps_its_completion():
    tokens = RequestTokens()
    tokens.computed(Mode.FP16, 0, 8, 8)
    tokens.begins(0, exact=0, prompt_tokens=8)
    tokens.computed(Mode.FP8, 0, 11, 8)  # the prompt and the three sampled tokens are computed again
    tokens.completion_fp8 += 1
    assert usage_of(tokens.counts(completion_tokens=4)) == {
        "prompt": {"fp16": 0, "fp8": 8, "cached": {"fp16": 0, "fp8": 0}},
        "completion": {"fp16": 3, "fp8": 1},
    }


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
