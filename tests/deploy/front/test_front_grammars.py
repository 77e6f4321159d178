"""Grammars are tried in a process of their own, with a limit on what they cost."""

import asyncio

import psutil
import pytest
from processes import ROOT
from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import get_tokenizer

from deploy.front.checks import grammar_process, grammars
from deploy.front.checks.grammar_process import Setting
from deploy.front.replies import Refused
from deploy.metrics.request_metrics import RequestOutcome

# No engine, but processes that load what an engine loads.
pytestmark = pytest.mark.engine
VOCABULARY = 4096
SLOW = "400: the grammar cannot be used: it takes more than 1 s of processor time, or too much memory"


class Trial:
    """The front's side on a loop that lives as long as the tests."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        tokenizer = get_tokenizer(str(ROOT / "models" / "fairytales-8m"))
        self.grammars = grammars.Grammars(Setting(tokenizer, VOCABULARY, StructuredOutputsConfig(), False, cpu_s=1.0))

    async def one(self, left_s=None, **constraint):
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
        await self.grammars.check(params, left_s)
        return params.structured_outputs

    def end(self):
        """End the process and what waits for it, as a replica's loop does."""
        self.grammars.close()
        waiting = asyncio.all_tasks(self.loop)
        for each in waiting:
            each.cancel()
        self.loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        self.loop.close()

    def __call__(self, **constraint):
        return self.loop.run_until_complete(self.one(**constraint))


def processes():
    """Those that try grammars."""
    # Of a zombie, which has no command line, None.
    found = {each: each.as_dict(["cmdline"])["cmdline"] or () for each in psutil.Process().children()}
    return [each for each, words in found.items() if grammar_process.__name__ in words]


@pytest.fixture(scope="module")
def trial():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammars, "CHILD_S", 300.0)
        trial = Trial()
        trial.grammars.start()
        yield trial
        trial.end()
    assert not processes(), "it ends by itself"


def long_choices(number):
    return [f"{number}-{i:03d}" + "y" * 5000 for i in range(100)]


def test_a_deadline_bounds_the_wait_for_a_process_that_starts_and_for_a_grammar_that_is_tried(trial):
    with pytest.raises(Refused, match="before the process that tries grammars had started; try again") as caught:
        trial(left_s=0.01, regex="a")
    assert (caught.value.status, caught.value.outcome) == (503, RequestOutcome.REFUSED)
    assert trial(regex="a")._backend == "xgrammar"
    with pytest.raises(
        Refused, match="the request's queue deadline was up before its grammar had been tried; try again"
    ):
        trial(left_s=0.01, choice=long_choices(30))
    assert trial(left_s=0.0, regex="a")._backend == "xgrammar", "one that is known"


def test_a_process_that_ends_is_replaced_and_who_asks_meanwhile_waits_for_the_other(trial, monkeypatch):
    trial(regex="a")
    monkeypatch.setattr(grammars, "PAUSE_S", 0.0)
    (before,) = processes()
    before.kill()
    assert trial(regex="[g-i]{3}")._backend == "xgrammar"
    (after,) = processes()
    assert after.pid != before.pid


def test_a_grammar_that_compiles_is_left_as_the_engine_will_compile_it(trial):
    found = trial(choice=["yes", "no"])
    assert found._backend == "xgrammar"
    assert found._backend_was_auto
    assert found.choice is None
    assert "yes" in found.grammar


@pytest.mark.parametrize(("regex", "told"), [("(abc", "unclosed group"), ("*a", "repetition operator missing")])
def test_of_a_regex_that_is_none_the_client_hears_what_is_wrong_with_it(trial, regex, told):
    with pytest.raises(Refused, match=told) as caught:
        trial(regex=regex)
    assert "\n" not in str(caught.value)


def test_three_letters_do_not_wait_behind_six_grammars_of_half_a_minute_each_and_those_are_refused(trial):
    trial(regex="a")  # the process is up
    ended = []

    async def heavy(number):
        try:
            await trial.one(choice=long_choices(number))
        except Refused as refusal:
            ended.append(f"{refusal.status}: {refusal}")

    async def small():
        await asyncio.sleep(0.2)
        await trial.one(regex="[a-c]{3}")
        ended.append("three letters")

    async def both():
        await asyncio.gather(*map(heavy, range(6)), small())

    trial.loop.run_until_complete(both())
    assert ended[0] == "three letters"
    assert ended[1:] == [SLOW] * 6


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"regex": "("}, "invalid regex"),
        ({"grammar": "root ::= root"}, "allows no text"),
        ({"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}}, "allows no text"),
        ({"json": "{"}, "Invalid JSON"),
    ],
)
def test_what_does_not_compile_or_allows_nothing_is_refused_with_the_reason(trial, constraint, reason):
    with pytest.raises(Refused, match=reason) as caught:
        trial(**constraint)
    assert caught.value.status == 400


def test_the_number_of_grammars_that_wait_is_bounded_also_where_their_clients_have_left(trial, monkeypatch):
    trial(regex="a")
    monkeypatch.setattr(grammars, "MOST_ASKED", 2)

    async def crowd():
        waiting = [asyncio.ensure_future(trial.one(choice=long_choices(number))) for number in (20, 21)]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(Refused, match="too many grammars") as caught:
            await trial.one(regex="[j-l]{3}")
        assert caught.value.status == 503
        assert (await trial.one(regex="a"))._backend == "xgrammar", "one that is known"

    trial.loop.run_until_complete(crowd())
