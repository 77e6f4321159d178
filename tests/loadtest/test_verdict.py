"""The sentences that a load test ends with, and what they must not say."""

import pytest
from loadtest_builders import make_run

from loadtest.report.verdict import verdict


@pytest.mark.parametrize(
    ("adaptive", "fp16", "says"),
    [
        (980, 800, "Adaptive meets the SLO (98.0 % of requests) where FP16 only misses it (80.0 %)."),
        (900, 800, "Adaptive keeps more requests within the SLO than FP16 only (90.0 % against 80.0 %)."),
        (805, 800, "Not shown: adaptive and FP16 only do not differ (80.5 % and 80.0 % of requests within the SLO)."),
        (700, 800, "Adaptive keeps fewer requests within the SLO than FP16 only (70.0 % against 80.0 %)."),
    ],
)
def test_the_verdict_says_only_what_the_numbers_show(adaptive, fp16, says):
    lines = verdict([make_run("fp16", fp16), make_run("adaptive", adaptive)])
    assert says in lines[0]
    assert not any("Caution" in line for line in lines)


def test_the_verdict_weighs_adaptive_against_fp8_and_warns():
    runs = [make_run("fp16", 500), make_run("fp8", 990), make_run("adaptive", 985, fp16_token_share=0.681)]
    text = "\n".join(verdict(runs))
    assert "Not shown: adaptive and FP8 only do not differ (98.5 % and 99.0 %" in text
    exact = runs[2].model_copy(update={"exact_answer_share": 0.5, "exact_answer_share_of_pinned": 0.9})
    lines = verdict([*runs[:2], exact])
    assert lines[1] == "Adaptive gave 50.0 % of its answers exactly, and ran 68.1 % of its tokens in FP16."
    assert "only 90.0 % of the answers that must be exact were exact" in lines[-1]
    assert "FP8 only keeps more requests within the SLO than FP16 only (99.0 % against 50.0 %)" in text
    few = make_run("fp16", 10, count=20, fp16_token_share=0.9, errors=2, error_kinds={"HTTP 429": 2})
    text = "\n".join(verdict([few]))
    assert "2 of 20 requests failed; they count as SLO misses: 2 x HTTP 429." in text
    assert "only 20 requests" in text
    assert "90.0 % of the tokens ran in FP16" in text
    assert verdict([]) == ()


def test_the_verdict_tells_of_replicas_that_were_gone_for_a_part_of_the_run():
    for fewest, most, told in ((1, 2, True), (2, 2, False), (None, None, False)):
        text = "\n".join(verdict([make_run("fp16", 900, replicas_fewest=fewest, replicas_most=most)]))
        assert ("Caution: FP16 only: 1 to 2 replicas answered during the run" in text) is told
