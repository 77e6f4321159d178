"""One policy's run: directive, cool-down, replay of the arrivals, timeline."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadtest.config import LoadtestConfig
from loadtest.errors import ServiceError
from loadtest.progress import Progress
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import Event, PlannedRequest, SendPlan
from loadtest.service.admin import DirectiveName, ServiceClient
from workload.records import Policy, RequestRecord, TimelineSample
from workload.traces import Arrival

DIRECTIVES: dict[Policy, DirectiveName] = {"fp16": "fp16", "fp8": "fp8", "adaptive": "auto"}  # plain ones take none
MOST_FAILED_POLLS = 20  # in a row: the service is gone
SNAPSHOT_S = 0.5  # after which the counters in /status hold everything that the run did


def run_policy(
    service: ServiceClient,
    config: LoadtestConfig,
    policy: Policy,
    run: int,
    model: str,
    arrivals: Sequence[Arrival],
    out_dir: Path,
    progress: Progress,
) -> tuple[tuple[RequestRecord, ...], tuple[TimelineSample, ...]]:
    """Replay the arrivals under one policy; returns its requests and timeline."""
    if policy in DIRECTIVES:
        service.direct(DIRECTIVES[policy], config.settle_limit_s, progress.say)
    progress.say(f"{policy}: cooling down, {config.cooldown_s:g} s")
    time.sleep(config.cooldown_s)
    samples: list[TimelineSample] = []
    failed = 0

    def take(at_s: float) -> None:
        """Look at the service, where it is directed; a look that fails is left out."""
        nonlocal failed
        if policy not in DIRECTIVES:
            return
        try:
            status = service.status()
        except ServiceError:
            failed += 1
            if failed >= MOST_FAILED_POLLS:
                raise
            return
        failed = 0
        samples.append(TimelineSample(policy=policy, at_s=at_s, status=status))

    take(0.0)

    def poll(elapsed_s: float, event: Event) -> None:
        if elapsed_s <= 0:  # the sender is ready, the first request is not due
            return
        take(elapsed_s)
        progress.say(
            f"{policy}: {max(elapsed_s, 0):.0f}/{config.duration_s:.0f} s, {event.sent}/{len(arrivals)} sent, "
            f"{event.in_flight} in flight, {event.done} done, {event.errors} errors{_shown(samples)}"
        )

    plan = SendPlan(
        kind="open",
        policy=policy,
        run=run,
        url=service.url,
        allow_host=config.allow_host,
        model=model,
        requests=planned(arrivals, config.exact_share, config.seed, config.session_share),
        duration_s=config.duration_s,
        drain_s=config.drain_s,
        request_timeout_s=config.request_timeout_s,
        seed=config.seed,
        records_path=out_dir / f"requests-{policy}.jsonl",
    )
    records = run_plan(plan, poll, service.key)
    time.sleep(SNAPSHOT_S)
    take(max((sample.at_s for sample in samples), default=0.0) + SNAPSHOT_S)
    return records, tuple(samples)


def planned(
    arrivals: Sequence[Arrival], exact_share: float, seed: int, session_share: float = 0.0
) -> tuple[PlannedRequest, ...]:
    """The requests of a run; the same ones ask for exact answers, and tell their conversation, under every policy."""
    drawn = np.random.default_rng([0x3AC7, seed]).random(len(arrivals)) < exact_share
    return tuple(
        PlannedRequest.of(arrival, precision="exact" if exact else None, session=_session(arrival, seed, session_share))
        for arrival, exact in zip(arrivals, drawn, strict=True)
    )


def _session(arrival: Arrival, seed: int, share: float) -> str | None:
    """The name of a conversation: its second block, for the first is the system's prompt."""
    if len(arrival.blocks) < 2:
        return None
    told = np.random.default_rng([0x5E55, seed, arrival.blocks[1]]).random() < share
    return f"conversation-{arrival.blocks[1]}" if told else None


def _shown(samples: Sequence[TimelineSample]) -> str:
    """What the service said last, for the progress line."""
    if not samples:
        return ""
    status = samples[-1].status
    modes = "+".join(sorted({replica.mode for replica in status.replicas})) or status.mode
    return f"; {status.waiting} waiting, mode {modes}"
