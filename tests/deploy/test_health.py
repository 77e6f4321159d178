"""Health from forward progress, and the probes before a replica may serve."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from front_calls import ID, ask
from test_agent import STATS, Controller, Engine, run, until

from deploy.front.app import Front
from deploy.replica.health_routes import show_health
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts


async def hung():
    raise RuntimeError("the engine has not answered for 9 s")


def test_a_hung_engine_makes_the_replica_unhealthy_with_the_reason():
    front = Front(None, SimpleNamespace(routes={}), {"/health": lambda: show_health("r0", "healthy", hung, {})})
    status, _, body = ask(front, "/health", "GET")
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"], error["request_id"]) == (503, 503, "server_error", ID)
    assert error["message"] == "replica r0 is not healthy: the engine has not answered for 9 s"


# -- forward progress --------------------------------------------------------------------------------------------------


class Answering(Engine):
    """Answers whatever it is asked, and makes no step while it has work: a deadlock inside the scheduler."""

    progress_age_s: float | None = None

    async def __call__(self, utility, *args):
        await super().__call__(utility, *args)
        return {**STATS, "progress_age_s": self.progress_age_s}


def test_an_engine_that_answers_and_makes_no_step_is_noticed_and_one_without_work_is_not(monkeypatch, clock):
    monkeypatch.setattr("deploy.agent.agent.HUNG_AFTER_S", 0.5)
    # Time stands still: what the engine tells does not age while this process is paused.
    monkeypatch.setattr("deploy.agent.agent.time", SimpleNamespace(monotonic=clock))

    async def scenario(agent, engine):
        await until(lambda: agent.stats is not None)
        agent.check_engine()
        engine.progress_age_s = 0.1
        await until(lambda: agent.stalled_s > 0)
        agent.check_engine()
        engine.progress_age_s = 0.6
        await until(lambda: agent.stalled_s > 0.5)
        with pytest.raises(RuntimeError, match="has had work and made no step for 1 s"):
            agent.check_engine()
        engine.progress_age_s = None
        await until(lambda: agent.stalled_s == 0)
        agent.check_engine()

    run(scenario, Controller(), engine=Answering())


# -- probes ------------------------------------------------------------------------------------------------------------


class ProbedEngine:
    """Answers completions in the precision that it was told, or in another one."""

    def __init__(self, counts_in):
        self.mode = None
        self.directives = []
        self._counts_in = counts_in  # directed mode -> TokenCounts, None (no answer) or an exception

    async def call(self, utility, directive):
        assert utility == "nestedfp_set_directive"
        self.mode = directive["mode"]
        self.directives.append(self.mode)

    @property
    def client(self):
        return self

    async def generate(self, prompt, params, request_id):
        from nestedfp.vllm_plugin import frontend

        if (counts := self._counts_in(self.mode)) is not None:
            frontend._collecting.get()["s"] = counts
            yield object()


def directed(mode):
    return TokenCounts(completion_fp16=4) if mode == "fp16" else TokenCounts(completion_fp8=4)


def probe(engine, fp16_only=False):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deploy.replica.probe import probe_modes
    return asyncio.run(probe_modes(engine, fp16_only))


def test_both_precisions_are_probed_and_full_quality_is_left_in_force():
    engine = ProbedEngine(directed)
    assert set(probe(engine)) == {"fp16", "fp8"}
    assert engine.directives == ["fp16", "fp8", "fp16"]


@pytest.mark.parametrize(
    ("counts_in", "fp16_only", "message"),
    [
        (lambda mode: TokenCounts(completion_fp16=4), False, "directed to fp8.*4 tokens in fp16 and 0 in fp8"),
        (directed, True, "expected 4 in fp16"),
        (lambda mode: TokenCounts(completion_fp16=3), False, "directed to fp16"),
        (lambda mode: None, False, "did not answer a probe in fp16"),
    ],
    ids=["never FP8", "FP8 without kernels", "too few", "no answer"],
)
def test_a_replica_whose_engine_answers_otherwise_does_not_start(counts_in, fp16_only, message):
    engine = ProbedEngine(counts_in)
    with pytest.raises(RuntimeError, match=message):
        probe(engine, fp16_only)
    assert engine.directives[-1] == "fp16"


def test_an_engine_that_has_only_fp16_is_ready_with_it():
    assert set(probe(ProbedEngine(lambda mode: TokenCounts(completion_fp16=4)), fp16_only=True)) == {"fp16", "fp8"}
