"""A slow engine that does what vLLM V1's scheduler does, request by request: what the fast one must agree with.

Written from vllm/v1/core/sched/scheduler.py (``schedule``): running requests in order, preemption of the last one when
blocks are short, then admissions unless something was preempted.
"""

from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest


class SlowRequest:
    """A request and how far it is."""

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.generated = 0
        self.computed = 0
        self.decoding = False  # it has sampled a token since it was admitted
        self.first_s = self.finished_s = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.request.prompt_tokens + self.generated


class SlowEngine:
    """FP16 only; ``run`` serves all requests and returns them with their times."""

    def __init__(self, table: EngineTable) -> None:
        self.limits, self.cost = table.engine, table.fp16
        self.total_blocks = self.limits.kv_tokens // self.limits.block_tokens
        self.preemptions = 0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def run(self, requests: list[SimRequest]) -> list[SlowRequest]:
        everyone = [SlowRequest(request) for request in requests]
        coming = list(everyone)
        waiting: list[SlowRequest] = []
        running: list[SlowRequest] = []
        now_s = began_s = 0.0
        while coming or waiting or running:
            if not waiting and not running:
                now_s = began_s = max(now_s, coming[0].request.arrived_s)
            while coming and coming[0].request.arrived_s <= now_s:
                waiting.append(coming.pop(0))
            # A step filled ahead knows who was there when the step before began.
            seen_s = began_s if self.limits.async_scheduling and running else now_s
            scheduled = self.fill(waiting, running, seen_s)
            decodes = [slow for slow in scheduled if slow.decoding]
            kv_tokens = sum(slow.computed for slow in scheduled)
            began_s = now_s
            now_s += self.cost.step_s(sum(scheduled.values()), len(decodes), kv_tokens)
            for slow, count in scheduled.items():
                slow.computed += count
                if slow.computed == slow.tokens:
                    slow.generated += 1
                    slow.decoding = True
                    slow.first_s = slow.first_s or now_s
                    if slow.generated == slow.request.output_tokens:
                        slow.finished_s = now_s
                        running.remove(slow)
        return everyone

    def fill(self, waiting: list[SlowRequest], running: list[SlowRequest], seen_s: float) -> dict[SlowRequest, int]:
        budget = self.limits.max_num_batched_tokens
        scheduled: dict[SlowRequest, int] = {}
        preempted = False
        index = 0
        while index < len(running) and budget > 0:
            slow = running[index]
            count = min(slow.tokens - slow.computed, budget)
            while self.held(running, scheduled) + self.growth(slow, count) > self.total_blocks:
                victim = running.pop()
                budget += scheduled.pop(victim, 0)
                victim.computed, victim.decoding = 0, False
                waiting.insert(0, victim)
                self.preemptions += 1
                preempted = True
                if victim is slow:
                    break
            if preempted and slow not in running:
                break
            scheduled[slow] = count
            budget -= count
            index += 1
        while not preempted and waiting and budget > 0 and len(running) < self.limits.max_num_seqs:
            slow = waiting[0]
            if (
                slow.request.arrived_s > seen_s
                or self.held(running, scheduled) + self.blocks(slow.tokens) > self.total_blocks
            ):
                break
            waiting.pop(0)
            running.append(slow)
            scheduled[slow] = min(slow.tokens, budget)
            budget -= scheduled[slow]
        return scheduled

    def held(self, running: list[SlowRequest], scheduled: dict[SlowRequest, int]) -> int:
        return sum(self.blocks(slow.computed + scheduled.get(slow, 0)) for slow in running)

    def growth(self, slow: SlowRequest, count: int) -> int:
        return self.blocks(slow.computed + count) - self.blocks(slow.computed)
