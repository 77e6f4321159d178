"""Grammars are tried in a process of their own, with a limit on what they cost."""

import asyncio
import os
import signal

import pytest
from processes import ROOT
from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import get_tokenizer

from deploy.front.checks import grammars
from deploy.front.checks.grammar_process import Setting
from deploy.front.replies import Refused
from deploy.metrics.request_metrics import RequestOutcome

# No engine, but processes that load what an engine loads.
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("warm_grammars")]
VOCABULARY = 4096
SLOW = "400: the grammar may be right, but compiling it takes more than 1 s of processor time: simplify it"


class Trial:
    """The front's side on a loop that lives as long as the tests."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        tokenizer = get_tokenizer(str(ROOT / "models" / "fairytales-8m"))
        self.grammars = grammars.Grammars(
            Setting(tokenizer, VOCABULARY, StructuredOutputsConfig(), False, cpu_s=1.0, wall_s=120.0)
        )

    async def one(self, left_s=None, **constraint):
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
        await self.grammars.check(params, left_s)
        return params.structured_outputs

    async def ready(self):
        async with asyncio.timeout(120):
            while not self.grammars._ready:
                await asyncio.sleep(0.02)

    def close(self):
        self.grammars.close()
        self.grammars._process.join(60)
        self.loop.close()
        return self.grammars._process.exitcode

    def __call__(self, **constraint):
        return self.loop.run_until_complete(self.one(**constraint))


@pytest.fixture(scope="module")
def trial(warm_grammars):
    trial = Trial()
    yield trial
    assert trial.close() == 0, "it ends by itself"


def long_choices(number):
    return [f"{number}-{i:03d}" + "y" * 5000 for i in range(100)]


def test_a_process_that_was_started_is_ready_before_anybody_asks_and_a_deadline_bounds_the_wait_for_it():
    trial = Trial()

    async def scenario():
        trial.grammars.start()
        with pytest.raises(Refused) as caught:
            await trial.one(left_s=0.01, regex="a")
        assert str(caught.value) == (
            "the request's queue deadline was up before the process that tries grammars had started; try again"
        )
        assert (caught.value.status, caught.value.outcome) == (503, RequestOutcome.REFUSED)
        await trial.ready()
        started = trial.grammars._process
        trial.grammars.start()  # it runs
        assert (await trial.one(regex="[m-o]{3}"))._backend == "xgrammar"
        assert trial.grammars._process is started

    trial.loop.run_until_complete(scenario())
    assert trial.close() == 0


def test_a_process_that_ends_is_replaced_although_nobody_asks(trial):
    async def scenario():
        trial.grammars.start()
        await trial.ready()
        before = trial.grammars._process.pid
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(120):
            while trial.grammars._process.pid == before:
                await asyncio.sleep(0.02)
        await trial.ready()

    trial.loop.run_until_complete(scenario())


def test_a_setting_that_cannot_be_sent_is_tried_again_and_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(grammars, "PAUSE_S", 0.05)

    async def scenario():
        unsent = grammars.Grammars(lambda: None)
        with pytest.raises(Refused, match="has ended"):
            await asyncio.wait_for(
                unsent.check(SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))), 60
            )
        unsent.close()

    asyncio.run(scenario())
    assert "cannot be started" in caplog.text


def test_a_deadline_bounds_the_wait_for_a_grammar_that_is_tried(trial):
    trial(regex="a")  # the process is up
    with pytest.raises(Refused) as caught:
        trial(left_s=0.01, choice=long_choices(30))
    assert str(caught.value) == "the request's queue deadline was up before its grammar had been tried; try again"
    assert trial(left_s=0.0, regex="a")._backend == "xgrammar", "one that is known"


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


def test_whoever_waits_hears_of_a_killed_process_and_another_one_takes_over(trial):
    trial(regex="a")
    before = trial.grammars._process.pid

    async def killed():
        waiting = asyncio.ensure_future(trial.one(choice=long_choices(9)))
        await asyncio.sleep(0.2)
        os.kill(before, signal.SIGKILL)
        await waiting

    with pytest.raises(Refused, match="try again") as caught:
        trial.loop.run_until_complete(killed())
    assert caught.value.status == 503
    assert trial(regex="[g-i]{3}")._backend == "xgrammar"
    assert trial.grammars._process.pid != before


def test_vllm_does_not_check_again_what_has_been_tried(trial, monkeypatch):
    grammars.skip_tried()
    config, tokenizer = StructuredOutputsConfig(), trial.grammars._setting.tokenizer

    async def both():
        params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        await trial.grammars.check(params)
        monkeypatch.setattr("vllm.v1.structured_output.backend_xgrammar.validate_xgrammar_grammar", None)
        params._validate_structured_outputs(type("Model", (), {"is_diffusion": False}), config, tokenizer)
        other = SamplingParams(structured_outputs=StructuredOutputsParams(regex="z"))
        with pytest.raises(TypeError):  # it would be checked
            other._validate_structured_outputs(type("Model", (), {"is_diffusion": False}), config, tokenizer)

    trial.loop.run_until_complete(both())


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
