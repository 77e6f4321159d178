"""The precision of an answer as its client hears it before it begins: in a header, or that nobody can promise it."""

from types import SimpleNamespace

import pytest
from front_calls import GOOD, Peers, ask, error_of, front

from deploy.front.generate import Inexact


async def answer(request):
    return SimpleNamespace(model_dump=lambda mode: {"usage": {}})


@pytest.mark.parametrize(
    ("asked", "directed", "told"),
    [
        (None, "auto", "auto"),
        (None, "fp16", "exact"),
        ("auto", "fp8", "fast"),
        ("exact", "fp8", "exact"),
        ("fp16", "auto", "exact"),
        ("fast", "fp16", "fast"),
    ],
)
def test_a_header_says_what_was_decided_at_the_start(asked, directed, told):
    headers = {"x-nestedfp-precision": asked} if asked else {}
    status, answered, _ = ask(front(answer, Peers(directed=directed)), headers=headers)
    assert (status, answered["x-nestedfp-precision"]) == (200, told)


def test_where_no_answer_can_be_exact_a_promise_is_refused_and_everything_else_is_answered():
    app = front(answer)
    app.generate.inexact = Inexact.CHECKPOINT
    refused = ask(app, body={**GOOD, "precision": "exact"})
    assert (refused[0], refused[1]["retry-after"]) == (503, "60")
    assert "no answer can be exact: this engine runs" in error_of(refused)
    for inexact, told in ((Inexact.CHECKPOINT, "auto"), (Inexact.KV_CACHE, "weights_exact")):
        directed = front(answer, Peers(directed="fp16"))
        directed.generate.inexact = inexact
        assert ask(directed)[1]["x-nestedfp-precision"] == told
    assert [ask(app, body={**GOOD, "precision": each})[0] for each in ("fast", "auto")] == [200, 200]
