"""The real scheduler under random directives, pins, priorities, aborts and preemption, against an oracle of every KV position.

The oracle knows which step wrote each slot of the KV cache, and what each request has read and computed since it last began.
From that alone it says what the scheduler must disclose, and what a pinned request may touch.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm_parts import BLOCK, MODEL, Engine, RequestStatus, engine_request

from nestedfp.modes import Mode
from nestedfp.steps.rows.row_state import PromptChunk, RowPlan
from nestedfp.steps.step_costs import MixedCosts, StepCost, StepCosts
from nestedfp.vllm_plugin.scheduling.accounting import COUNTS_KEY, TokenCounts
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

# Steps that take about STEPS_S, so that deadlines of milliseconds decide.
COSTS = StepCosts(
    (StepCost(1, 0.5, 0.3), StepCost(16, 0.8, 0.4), StepCost(2048, 40.0, 20.0)),
    MixedCosts((1, 16), (1, 256), ((0.6, 3.0), (0.9, 3.5))),
)
WHOLE_COSTS = StepCosts(COSTS.rows)
STEPS_S = (0.4e-3, 0.8e-3, 2e-3)
EAGLE = {"method": "eagle", "model": str(MODEL)}  # whose weights nobody loads here
STOP = 9  # token that ends an answer
ROUNDS = 120
SEEDS = range(16)
MAX_ADAPTERS = 2  # in a step


@dataclass
class Life:
    """What a request has read and computed of its prompt since it last began, and sampled since it came."""

    request: Any
    pinned: bool
    preemptions: int = -1  # when it last began; -1: it has not yet
    prompt: dict[str, int] = field(default_factory=dict)
    completion: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))

    def counts(self) -> TokenCounts:
        return TokenCounts(
            **self.prompt, completion_fp16=self.completion[Mode.FP16], completion_fp8=self.completion[Mode.FP8]
        )


class Oracle:
    """Drives an engine and follows it."""

    def __init__(
        self, seed: int, clocks: Any, *, async_scheduling: bool, costs: StepCosts | None, drafts: int = 0
    ) -> None:
        self.random, self.clocks = random.Random(seed), clocks
        blocks = self.random.choice([14, 20, 40])
        self.budget_tokens = self.random.choice([max(32, 8 * (1 + drafts)), 64, 2048])
        self.engine = Engine(
            blocks=blocks,
            async_scheduling=async_scheduling,
            max_num_batched_tokens=self.budget_tokens,
            max_num_seqs=8,
            scheduling_policy=self.random.choice(["fcfs", "priority"]),
            enable_lora=True,
            max_loras=MAX_ADAPTERS,
            **({"speculative_config": {**EAGLE, "num_speculative_tokens": drafts}} if drafts else {}),
        )
        self.scheduler = self.engine.scheduler
        self.depth = 2 if async_scheduling else 1
        self.exact: dict[tuple[int, int], bool] = {}  # by block and offset: it and all before it are of FP16 steps
        self.adapters: dict[tuple[int, int], Any] = {}  # whose they are
        self.lives: dict[str, Life] = {}
        self.in_flight: list[Any] = []
        self.directive, self.is_strict = "fp16", True
        self.may_mix = costs is not None and costs.mixed is not None
        if costs is not None:
            self.scheduler.nestedfp_take_step_costs([costs.report()])
        self.is_sure = not (drafts and async_scheduling)  # where a step begins, when it is filled
        self.ended = self.mixed = self.rested = self.accepted = 0

    # -- what happens --------------------------------------------------------------------------------------------------

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            if self.random.random() < 0.25:
                self.direct()
            if self.random.random() < 0.5 and len(self.scheduler.requests) < 10:
                self.arrive()
            if self.random.random() < 0.05 and self.scheduler.requests:
                self.abort([self.random.choice(list(self.scheduler.requests))])
            if self.random.random() < 0.01:
                self.scheduler.reset_prefix_cache(reset_running_requests=True)  # outputs in flight are dropped
            self.advance()
        self.abort(list(self.scheduler.requests))
        while self.in_flight:
            self.finish()

    def direct(self) -> None:
        self.directive = self.random.choice(["fp16", "fp8", "auto"])
        rule: dict[str, float] = {}
        if self.directive == "auto" and self.random.random() < 0.2:
            rule = {"fp8_budget_fraction": self.random.choice([1, 5, 20]) / self.budget_tokens}
        elif self.directive == "auto" or (self.directive == "fp16" and self.random.random() < 0.5):
            exact = "" if self.directive == "auto" else "exact_"
            rule = {
                f"{exact}ttft_deadline_s": self.random.choice([1e-3, 5e-3, 20e-3, 1.0]),
                f"{exact}tpot_deadline_s": self.random.choice([0.2e-3, 1e-3, 2e-3, 4e-3, 0.1]),
            }
        self.is_strict = self.directive == "fp16" and not rule
        self.engine.direct(self.directive, **rule)

    def arrive(self) -> None:
        chance, name = self.random.random, f"r{len(self.lives)}"
        begin = 1000 * self.random.randrange(3)  # three prefixes that requests share
        params: dict[str, Any] = {"max_tokens": self.random.randrange(1, 24), "stop_token_ids": [STOP]}
        if (pinned := chance() < 0.25) or chance() < 0.2:
            params["extra_args"] = {"precision": "fp16" if pinned else "fast"}
        if chance() < 0.3:
            params["cache_salt"] = self.random.choice([None, "a", "fp16"])
        params["adapter"] = self.random.choice([None, None, *range(1, MAX_ADAPTERS + 2)])
        if chance() < 0.2:
            params |= {"stop": ["zz"], "detokenize": True}
        blocks = self.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        length = self.random.randrange(1, BLOCK * min(6, blocks - 6))
        prompt = list(range(begin, begin + length))
        if self.lives and chance() < 0.3:  # goes on from an answer
            before = self.random.choice(list(self.lives.values())).request
            prompt = list(before.all_token_ids)[: BLOCK * min(6, blocks - 6)]
            params |= {
                "cache_salt": before.cache_salt,
                "adapter": before.lora_request and before.lora_request.lora_int_id,
            }
        request = engine_request(name, prompt, **params)
        request.priority = self.random.randrange(-1, 2)
        self.lives[name] = Life(self.engine.add(request), pinned)

    def abort(self, names: list[str]) -> None:
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def advance(self) -> None:
        if not self.scheduler.has_unfinished_requests() and not self.in_flight:
            return
        step = self.engine.schedule()
        self.clocks.pass_(self.random.choice(STEPS_S))
        if step.num_scheduled_tokens:
            drafts = {name: len(tokens) for name, tokens in step.scheduled_spec_decode_tokens.items()}
            step.test_accepted = {name: self.random.randrange(count + 1) for name, count in drafts.items()}
            # By preemptions as well: one takes back all that its request had computed.
            step.test_rejected = {
                (name, self.lives[name].request.num_preemptions): count - step.test_accepted[name]
                for name, count in drafts.items()
            }
            self.follow(step)
            self.in_flight.append(step)
        while self.in_flight and (len(self.in_flight) >= self.depth or not step.num_scheduled_tokens):
            self.finish()

    def finish(self) -> None:
        step = self.in_flight.pop(0)
        tokens = {name: STOP if self.random.random() < 0.05 else 7 for name in step.num_scheduled_tokens}
        self.accepted += sum(step.test_accepted.values())
        for item in self.engine.finish(step, tokens=tokens, accepted=step.test_accepted):
            life = self.lives[item.request_id]
            life.completion[self.precision(step, item.request_id)] += len(item.new_token_ids)
            told = (item.kv_transfer_params or {}).get(COUNTS_KEY)
            assert told is not None or item.finish_reason is None, "an answer that ends without its counts"
            if told is not None:
                known = life.counts()
                if not self.is_sure and told.cached_fp16 < known.cached_fp16:  # positions that drafts might have had
                    fp8 = known.cached_fp8 + known.cached_fp16 - told.cached_fp16
                    known = known._replace(cached_fp16=told.cached_fp16, cached_fp8=fp8)
                assert told == known, f"{item.request_id}, preempted {life.request.num_preemptions} times"
                self.ended += item.finish_reason is not None

    # -- what must hold ------------------------------------------------------------------------------------------------

    def follow(self, step: Any) -> None:
        """Take down what a step reads and writes, in every position."""
        self.mixed += bool(step.nestedfp_exact)
        self.rested += any(request.request_id not in step.num_scheduled_tokens for request in self.scheduler.running)
        if self.is_strict:
            assert step.nestedfp_mode is Mode.FP16
        if step.nestedfp_exact:
            assert self.may_mix
            assert step.nestedfp_mode is Mode.FP8
            assert step.nestedfp_exact < step.num_scheduled_tokens.keys()
        rows = [(self.lives[name], count) for name, count in step.num_scheduled_tokens.items()]
        assert len({life.request.lora_request for life, _ in rows} - {None}) <= MAX_ADAPTERS
        before = {slot: self.exact.get(slot) for life, count in rows for slot in self.slots(life)}
        # Requests of one step may read what others of it write.
        for life, count in rows:
            for slot in self.slots(life)[-count:]:
                before[slot] = self.precision(step, life.request.request_id) is Mode.FP16
                self.adapters[slot] = life.request.lora_request
        for life, count in rows:
            slots = self.slots(life)
            start = len(slots) - count
            assert None not in (before[slot] for slot in slots[:start]), "reads a KV entry that nobody wrote"
            for slot in slots[:start]:
                assert self.adapters[slot] == life.request.lora_request, "reads a KV entry of another adapter"
            exact = next((i for i, slot in enumerate(slots) if not before[slot]), len(slots))
            for i, slot in enumerate(slots[start:], start):
                self.exact[slot] = i < exact
            self.note(life, self.precision(step, life.request.request_id), start, count, exact)

    def precision(self, step: Any, name: str) -> Mode:
        """Of a request's rows."""
        return Mode.FP16 if name in step.nestedfp_exact else step.nestedfp_mode

    def note(self, life: Life, mode: Mode, start: int, count: int, exact: int) -> None:
        """One row of a step: it computes ``count`` positions from ``start`` on; ``exact`` leading ones are exact then."""
        request = life.request
        if life.pinned:
            assert mode is Mode.FP16, "a pinned request in an FP8 step"
            assert exact == start + count, "a pinned request that touches what an FP8 step wrote"
        if request.nestedfp_class == "exact":
            assert mode is Mode.FP16, "an exact row multiplied in FP8"
            assert exact == start + count, "an exact request that touches what an FP8 step wrote"
        elif request.nestedfp_asked is not AskedPrecision.FAST:
            assert exact < start + count, "called fast, and exact all the same"
        of_prompt = request.num_prompt_tokens
        if life.preemptions != request.num_preemptions:  # all before ``start`` comes from the prefix cache
            life.preemptions = request.num_preemptions
            whole = start if exact >= start else exact // BLOCK * BLOCK  # a block counts as its last position
            cached_fp16 = min(whole, of_prompt)
            cached = {"cached_fp16": cached_fp16, "cached_fp8": min(start, of_prompt) - cached_fp16}
            life.prompt = {"prompt_fp16": 0, "prompt_fp8": 0, **cached}
            if self.is_strict:
                assert cached["cached_fp8"] == 0, "read from FP8 steps under an FP16 directive"
        life.prompt[f"prompt_{mode.value}"] += max(0, min(start + count, of_prompt) - start)

    def slots(self, life: Life) -> list[tuple[int, int]]:
        """Where the positions of a request lie that it has after the step just scheduled."""
        (blocks,) = self.scheduler.kv_cache_manager.get_blocks(life.request.request_id).blocks
        request = life.request
        rejected = sum(
            step.test_rejected.get((request.request_id, request.num_preemptions), 0) for step in self.in_flight
        )
        return [(blocks[i // BLOCK].block_id, i % BLOCK) for i in range(request.num_computed_tokens - rejected)]


@pytest.mark.parametrize("costs", [None, WHOLE_COSTS, COSTS], ids=["unmeasured", "whole steps", "mixed steps"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_what_is_disclosed_and_what_exact_requests_touch_is_what_an_oracle_of_every_kv_position_says(
    clocks, async_scheduling, costs
):
    ended = preempted = mixed = rested = 0
    for seed in SEEDS:
        oracle = Oracle(seed, clocks, async_scheduling=async_scheduling, costs=costs)
        oracle.play(ROUNDS)
        ended += oracle.ended
        mixed += oracle.mixed
        rested += oracle.rested
        preempted += sum(life.request.num_preemptions for life in oracle.lives.values())
        scheduler = oracle.scheduler
        assert not any((scheduler._pinned, scheduler._in_prompt, scheduler._exact, scheduler._may_end))
    assert ended > 20 * len(SEEDS), "the oracle has something to say"
    assert preempted > len(SEEDS)
    assert rested > len(SEEDS) // 2
    assert (mixed > 4 * len(SEEDS)) is (costs is COSTS)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_same_with_drafts_of_which_any_number_is_accepted(clocks, async_scheduling):
    ended = accepted = 0
    for seed in SEEDS:
        oracle = Oracle(seed, clocks, async_scheduling=async_scheduling, costs=WHOLE_COSTS, drafts=1 + seed % 4)
        oracle.play(ROUNDS)
        ended += oracle.ended
        accepted += oracle.accepted
        stats = oracle.scheduler.nestedfp_stats()
        assert stats["accepted_fp16"] + stats["accepted_fp8"] == oracle.accepted
    assert ended > 20 * len(SEEDS)
    assert accepted > 20 * len(SEEDS)


def test_an_fp8_step_begins_where_it_does_if_no_draft_in_flight_is_accepted():
    engine = Engine(async_scheduling=True, speculative_config={**EAGLE, "num_speculative_tokens": 3})
    answered = engine.add(engine_request("a", BLOCK - 2, max_tokens=3 * BLOCK))
    prompt, exact = engine.schedule(), engine.schedule()
    engine.finish(prompt)
    engine.direct("fp8")
    fast = engine.schedule()  # it writes the last position of the first block
    for step in (exact, fast):
        engine.finish(step)
    engine.run()
    engine.add(engine_request("b", list(answered.all_token_ids)[: 2 * BLOCK + 1], max_tokens=1))
    told = [item.kv_transfer_params[COUNTS_KEY] for item in engine.run()]
    assert [(each.cached_fp16, each.cached_fp8) for each in told] == [(0, BLOCK)]


@pytest.mark.parametrize("mode", ["fp16", "fp8"])
@pytest.mark.parametrize("stop", ["by the engine", "by the front end"])
def test_a_preempted_request_that_a_step_in_flight_ends_discloses_its_prompt(mode, stop):
    engine = Engine(blocks=8, async_scheduling=True)
    engine.direct(mode)
    ends = {"stop_token_ids": [STOP]} if stop == "by the engine" else {"stop": ["zz"], "detokenize": True}
    requests = [
        engine.add(engine_request(name, list(range(first, first + 2 * BLOCK)), max_tokens=3 * BLOCK, **ends))
        for name, first in (("a", 100), ("b", 300))
    ]
    before = engine.schedule()
    while True:
        step = engine.schedule()
        lost = next((r for r in requests if r.num_stale_output_tokens), None)
        outputs = engine.finish(before, tokens={lost.request_id: STOP} if lost else {})
        if lost is not None:
            break
        before = step
    (item,) = [item for item in outputs if item.request_id == lost.request_id]
    told = item.kv_transfer_params[COUNTS_KEY]
    assert told.prompt_fp16 + told.prompt_fp8 == 2 * BLOCK
    assert told == lost.nestedfp_tokens.counts(lost.num_output_tokens)
    assert getattr(told, f"prompt_{mode}") == 2 * BLOCK


@pytest.mark.parametrize(("mixed_ms", "exact"), [(15.0, {"a"}), (25.0, set())])
def test_a_pinned_request_costs_its_own_rows_where_steps_may_mix(mixed_ms, exact):
    engine = Engine()
    costs = StepCosts((StepCost(1, 10.0, 6.0), StepCost(64, 20.0, 12.0)), MixedCosts((32,), (32,), ((mixed_ms,),)))
    engine.scheduler.nestedfp_take_step_costs([costs.report()])
    engine.direct("fp8")
    engine.add(engine_request("a", list(range(32)), max_tokens=4, extra_args={"precision": "exact"}))
    engine.add(engine_request("b", list(range(100, 132)), max_tokens=4))
    step = engine.schedule()
    assert step.nestedfp_exact == exact
    assert step.nestedfp_mode is (Mode.FP8 if exact else Mode.FP16)
    engine.finish(step)
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["steps_mixed"], stats["steps_fp16"], stats["tokens_fp16"]) == ((1, 0, 32) if exact else (0, 1, 64))


def test_a_request_that_rests_keeps_its_adapters_slot(monkeypatch):
    engine = Engine(enable_lora=True, max_loras=1)
    engine.scheduler.nestedfp_take_step_costs([COSTS.report()])
    engine.direct("auto", ttft_deadline_s=1.0, tpot_deadline_s=1.0)
    engine.add(engine_request("a", BLOCK, max_tokens=4, adapter=1, extra_args={"precision": "exact"}))
    engine.step()
    for name, adapter in (("b", 2), ("c", None)):
        engine.add(engine_request(name, BLOCK, max_tokens=4, adapter=adapter))
    rests = RowPlan((), (), (PromptChunk(0, BLOCK, is_exact=True),), is_whole=True, reason="rests")
    with monkeypatch.context() as patched:
        patched.setattr(engine.scheduler._rows, "plan", lambda *args, **kwargs: rests)
        assert engine.schedule().num_scheduled_tokens == {"c": BLOCK}
    assert engine.scheduler.waiting.peek_request().request_id == "b"


def test_a_directive_that_comes_while_a_step_is_planned_is_of_the_next_one(monkeypatch):
    engine = Engine()
    engine.scheduler.nestedfp_take_step_costs([COSTS.report()])
    engine.direct("auto", ttft_deadline_s=1e-3, tpot_deadline_s=0.1)
    engine.add(engine_request("a", list(range(BLOCK)), max_tokens=4))
    begins_s = engine.scheduler._watch.begins_s

    def directed_meanwhile():
        engine.direct("fp16")
        return begins_s()

    monkeypatch.setattr(engine.scheduler._watch, "begins_s", directed_meanwhile)
    step = engine.schedule()
    assert (step.nestedfp_mode, step.num_scheduled_tokens) == (Mode.FP8, {"a": BLOCK}), "late in FP16"
    monkeypatch.undo()
    engine.finish(step)
    assert engine.schedule().nestedfp_mode is Mode.FP16
