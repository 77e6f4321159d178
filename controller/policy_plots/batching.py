"""A small model of one replica: continuous batching with chunked prefill, and a step time linear in the step's tokens.

Enough to close the loop around a policy in a plot or a test: queues, batches and latencies respond to the precision. It
knows no KV cache, no preemption and no network; the simulator does. Pure; times are seconds of the caller's clock.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.policies.base import USUAL_SLO, Slo
from controller.protocol import DirectiveFollower
from controller.schema import Fallback, LatencyWindow, ReplicaSnapshot
from nestedfp.modes import Mode
from nestedfp.step_rule import StepSignals, choose

WINDOW_S = 5.0  # span of the latency percentiles, as in the live replicas


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of a step: ``base_ms + per_token_ms * tokens``."""

    base_ms: float
    per_token_ms: float


# An 8B Llama shape on one H100: fitted by hand to benchmarks/results/h100-engine.csv, batches 1 and 256.
H100_8B: Mapping[Mode, StepTime] = MappingProxyType({Mode.FP16: StepTime(6.6, 0.026), Mode.FP8: StepTime(4.2, 0.018)})


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Job:
    request: Request
    left_tokens: int  # of the prompt
    first_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished request."""

    finished_s: float
    ttft_ms: float
    tpot_ms: float
    within_slo: bool


@dataclass
class BatchingReplica:
    """One replica.

    Attributes:
        replica_id: as in the snapshots.
        times: step times of the two modes.
        slo: what ``within_slo`` counts.
        max_seqs: requests in the batch at most.
        budget_tokens: tokens in a step at most.
    """

    replica_id: str = "r0"
    times: Mapping[Mode, StepTime] = field(default_factory=lambda: H100_8B)
    slo: Slo = USUAL_SLO
    max_seqs: int = 256
    budget_tokens: int = 2048
    fallback: Fallback = field(default_factory=Fallback)
    outcomes: list[Outcome] = field(default_factory=list)
    tokens: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    steps: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    switches: int = 0

    def __post_init__(self) -> None:
        self.follower = DirectiveFollower(self.replica_id, self.fallback)
        self._waiting: deque[_Job] = deque()
        self._prefilling: deque[_Job] = deque()
        self._decoding: list[tuple[int, int, _Job]] = []  # heap by the step that ends the request
        self._ending: list[_Job] = []  # prompts that the present step completes
        self._step_index = 0
        self._free_s = 0.0  # when the present step ends
        self._mode = Mode.FP16
        self._step_ms: dict[Mode, float | None] = dict.fromkeys(Mode, None)
        self._order = self._arrivals = self._arrived_tokens = self._within = self._seq = 0
        self._recent: deque[Outcome] = deque()

    @property
    def outstanding(self) -> int:
        """Requests that have arrived and are not finished: what a router balances."""
        return len(self._waiting) + len(self._prefilling) + len(self._ending) + len(self._decoding)

    def submit(self, request: Request) -> None:
        """Take a request; requests come in the order of time and never ahead of ``advance``."""
        self._waiting.append(_Job(request, request.prompt_tokens))
        self._arrivals += 1
        self._arrived_tokens += request.prompt_tokens

    def advance(self, to_s: float) -> None:
        """Run all steps that begin before ``to_s``."""
        while self._free_s < to_s:
            self._end_step(self._free_s)
            if not self._start_step(self._free_s):
                self._free_s = to_s
                return

    def _start_step(self, now_s: float) -> bool:
        budget = self.budget_tokens - len(self._decoding)
        scheduled = len(self._decoding)
        running = scheduled + len(self._prefilling)
        waited_s = max(0.0, now_s - self._waiting[0].request.at_s) if self._waiting else 0.0
        while budget > 0:
            if not self._prefilling:
                if not self._waiting or running >= self.max_seqs:
                    break
                self._prefilling.append(self._waiting.popleft())
                running += 1
            job = self._prefilling[0]
            chunk = min(job.left_tokens, budget)
            job.left_tokens -= chunk
            budget -= chunk
            scheduled += chunk
            if job.left_tokens > 0:
                break
            self._ending.append(self._prefilling.popleft())
        if scheduled == 0:
            return False
        in_force = self.follower.in_force(now_s)
        signals = StepSignals(scheduled, waited_s, has_pinned=False, budget_tokens=self.budget_tokens)
        mode = choose(signals, in_force.mode, in_force.rule).mode
        self.switches += mode is not self._mode and self._step_index > 0
        self._mode = mode
        took_ms = self.times[mode].base_ms + self.times[mode].per_token_ms * scheduled
        before = self._step_ms[mode]
        self._step_ms[mode] = took_ms if before is None else before + 0.2 * (min(took_ms, 2 * before) - before)
        self.tokens[mode] += scheduled
        self.steps[mode] += 1
        self._step_index += 1
        self._free_s = now_s + took_ms / 1e3
        return True

    def _end_step(self, now_s: float) -> None:
        while self._decoding and self._decoding[0][0] <= self._step_index:
            self._finish(now_s, heapq.heappop(self._decoding)[2])
        for job in self._ending:
            job.first_token_s = now_s
            if job.request.output_tokens > 1:
                self._order += 1
                last_step = self._step_index + job.request.output_tokens - 1
                heapq.heappush(self._decoding, (last_step, self._order, job))
            else:
                self._finish(now_s, job)
        self._ending.clear()

    def _finish(self, now_s: float, job: _Job) -> None:
        ttft_ms = (job.first_token_s - job.request.at_s) * 1e3
        tpot_ms = (now_s - job.first_token_s) * 1e3 / max(1, job.request.output_tokens - 1)
        within = ttft_ms <= self.slo.ttft_ms and tpot_ms <= self.slo.tpot_ms
        outcome = Outcome(now_s, ttft_ms, tpot_ms, within)
        self._within += within
        self.outcomes.append(outcome)
        self._recent.append(outcome)

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """What the replica reports."""
        self._seq += 1
        while self._recent and self._recent[0].finished_s < now_s - WINDOW_S:
            self._recent.popleft()
        in_force = self.follower.in_force(now_s)
        return ReplicaSnapshot(
            replica_id=self.replica_id,
            incarnation="a",
            seq=self._seq,
            ready=True,
            mode=self._mode,
            directive=in_force.mode,
            epoch=in_force.epoch,
            lease_remaining_s=self.follower.lease_remaining_s(now_s),
            switches=self.switches,
            steps_fp16=self.steps[Mode.FP16],
            steps_fp8=self.steps[Mode.FP8],
            tokens_fp16=self.tokens[Mode.FP16],
            tokens_fp8=self.tokens[Mode.FP8],
            waiting=len(self._waiting),
            waiting_tokens=sum(job.left_tokens for jobs in (self._prefilling, self._waiting) for job in jobs),
            oldest_wait_s=max(0.0, now_s - self._waiting[0].request.at_s) if self._waiting else 0.0,
            running=len(self._decoding) + len(self._prefilling) + len(self._ending),
            kv_usage=0.0,
            arrivals=self._arrivals,
            arrived_tokens=self._arrived_tokens,
            finished=len(self.outcomes),
            judged=len(self.outcomes),
            within_slo=self._within,
            ttft=_window([outcome.ttft_ms for outcome in self._recent]),
            tpot=_window([outcome.tpot_ms for outcome in self._recent]),
            step_ms_fp16=self._step_ms[Mode.FP16],
            step_ms_fp8=self._step_ms[Mode.FP8],
        )


def _window(samples_ms: list[float]) -> LatencyWindow:
    if not samples_ms:
        return LatencyWindow()
    ordered, last = sorted(samples_ms), len(samples_ms) - 1
    p50, p90, p99 = (ordered[round(q * last)] for q in (0.5, 0.9, 0.99))
    return LatencyWindow(count=last + 1, p50_ms=p50, p90_ms=p90, p99_ms=p99)
