"""The closed loop over a whole engine on the CPU: as many requests at any time, and what it says of them."""

import pytest
from processes import run_json

STREAMS, TOKENS = 4, 6


@pytest.mark.engine
def test_whenever_a_request_ends_the_next_one_comes_and_what_ended_is_counted():
    load = {"streams": STREAMS, "prompt_tokens": 8, "output_tokens": TOKENS, "warm_s": 0.5, "window_s": 1.5}
    found = run_json("closed_loop_scenario.py", load)
    assert set(found["unfinished"]) == {STREAMS}, "at every step"
    assert found["sent"][:STREAMS] == [1, 2, 4, 5], "the first answers are of all lengths"
    assert set(found["sent"][STREAMS:]) == {TOKENS}
    assert 0 < found["ended"] <= len(found["sent"]) - STREAMS, (
        "in the window; those of the warm-up and of its end are not"
    )
    # Some that ended in the window had tokens before it, and others had some in it and did not end there.
    assert found["tokens_per_s"] * load["window_s"] <= (found["ended"] + STREAMS) * TOKENS
    assert found["tokens_per_s"] * (found["took_s"] - load["warm_s"]) >= (found["ended"] - STREAMS) * TOKENS
    assert found["left"] == 0
