"""Disclosure of precision in responses, streamed or not."""

import json
from types import SimpleNamespace

import pytest
from front_calls import GOOD, ask, front

from nestedfp.answers import answer_of
from nestedfp.vllm_plugin import frontend
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts, total, usage_of
from nestedfp.vllm_plugin.serving.disclosure import StreamDiscloser, disclose

TOKENS = {"prompt": {"fp16": 3, "fp8": 2, "cached": {"fp16": 1, "fp8": 0}}, "completion": {"fp16": 4, "fp8": 0}}


def event(**chunk):
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"


def payload(text):
    return json.loads(text.removeprefix("data: "))


def test_a_usage_that_has_to_be_made_counts_each_prompt_once_however_many_of_its_sequences_have_ended():
    ended = {"prompt": {"fp16": 1, "fp8": 0, "cached": {"fp16": 6, "fp8": 0}}, "completion": {"fp16": 2, "fp8": 0}}
    stream = StreamDiscloser(lambda: ended, include_usage=False, prompt_tokens=lambda: 7)
    for sequences in (1, 3):
        ended["prompt"] = {"fp16": sequences, "fp8": 0, "cached": {"fp16": 6 * sequences, "fp8": 0}}
        ended["completion"]["fp16"] = 2 * sequences
        usage = payload(stream.event(event(choices=[{"text": "b", "finish_reason": "length"}])))["usage"]
        told = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        assert told == (7, 2 * sequences, 7 + 2 * sequences)


def test_usage_gains_the_counts_and_keeps_the_rest():
    assert disclose({"prompt_tokens": 6}, TOKENS) == {
        "prompt_tokens": 6,
        "precision": "mixed",
        "precision_tokens": TOKENS,
    }
    assert disclose({"prompt_tokens": 6}, None) == {"prompt_tokens": 6}


@pytest.mark.parametrize("beams", [False, True])
def test_an_answer_in_one_piece_says_its_precision_but_for_beams_whose_computed_tokens_are_not_those_of_the_answer(
    beams,
):
    usage = {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}

    async def do(request):
        frontend._collecting.get()["r"] = TokenCounts(prompt_fp16=247, completion_fp16=23)
        return SimpleNamespace(model_dump=lambda mode: {"usage": usage})

    told = json.loads(ask(front(do), body={**GOOD, "use_beam_search": beams})[2])["usage"]
    assert ("precision_tokens" in told) is ("precision" in told) is not beams
    assert {name: told[name] for name in usage} == usage


def test_without_include_usage_the_finish_chunk_carries_the_counts():
    stream = StreamDiscloser(lambda: TOKENS, include_usage=False)
    middle = event(choices=[{"text": 'a "finish_reason":"x', "finish_reason": None}])
    last = event(choices=[{"text": "b", "finish_reason": "length"}])
    assert stream.event(middle) == middle
    assert payload(stream.event(last))["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "precision": "mixed",
        "precision_tokens": TOKENS,
    }
    assert stream.event("data: [DONE]\n\n") == "data: [DONE]\n\n"


def test_with_include_usage_only_the_usage_chunk_carries_the_counts():
    stream = StreamDiscloser(lambda: TOKENS, include_usage=True)
    last = event(choices=[{"text": "b", "finish_reason": "stop"}])
    assert stream.event(last) == last
    usage = payload(stream.event(event(choices=[], usage={"prompt_tokens": 6, "completion_tokens": 4})))["usage"]
    assert usage == {"prompt_tokens": 6, "completion_tokens": 4, "precision": "mixed", "precision_tokens": TOKENS}


def test_text_outside_ascii_survives():
    stream = StreamDiscloser(lambda: TOKENS, include_usage=False)
    assert "Zwölf Brüder" in stream.event(event(choices=[{"text": "Zwölf Brüder", "finish_reason": "stop"}]))


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (TokenCounts(prompt_fp16=3, completion_fp16=2), "exact"),
        (TokenCounts(cached_fp16=3, prompt_fp16=1, completion_fp16=2), "exact"),
        (TokenCounts(prompt_fp8=3, completion_fp8=2), "fast"),
        (TokenCounts(cached_fp16=9, prompt_fp8=3, completion_fp8=2), "fast"),
        (TokenCounts(cached_fp8=9, prompt_fp8=3), "fast"),
        (TokenCounts(prompt_fp16=3, completion_fp16=2, completion_fp8=1), "mixed"),
        (TokenCounts(prompt_fp8=1, completion_fp16=2), "mixed"),
        (TokenCounts(cached_fp8=1, prompt_fp16=3, completion_fp16=2), "mixed"),
        (total([TokenCounts(prompt_fp16=3), TokenCounts(prompt_fp8=3)]), "mixed"),  # of two sequences
        (TokenCounts(prompt_fp16=3, completion_fp16=2, kv_fp8=1), "weights_exact"),
        (TokenCounts(prompt_fp16=3, completion_fp8=2, kv_fp8=1), "mixed"),
    ],
)
def test_an_answer_is_exact_only_where_all_of_it_and_of_what_it_read_is(counts, told):
    assert answer_of(usage_of(counts)) == told
    assert disclose({}, usage_of(counts))["precision"] == told


@pytest.mark.parametrize("whole", [False, True])
def test_a_chunk_that_comes_before_all_sequences_have_ended_does_not_name_the_answers_class(whole):
    tokens = usage_of(TokenCounts(prompt_fp16=3, completion_fp16=2))
    found = StreamDiscloser(lambda: tokens, False, whole=lambda: whole).event(
        event(choices=[{"finish_reason": "stop"}])
    )
    assert payload(found)["usage"].get("precision") == ("exact" if whole else None)
