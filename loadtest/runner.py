"""One policy's run: directive, cool-down, replay of the arrivals, timeline."""

import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.admin import DirectiveName, Service
from loadtest.config import LoadtestConfig
from loadtest.dispatch import run_plan
from loadtest.errors import ServiceError
from loadtest.plan import Event, Plan, PlannedRequest
from loadtest.progress import Progress
from loadtest.records import Policy, RequestRecord, TimelineSample
from loadtest.trace import Arrival

DIRECTIVES: dict[Policy, DirectiveName] = {"fp16": "fp16", "fp8": "fp8", "adaptive": "auto"}
SETTLE_LIMIT_S = 300.0
SNAPSHOT_S = 0.5  # after which the counters in /status hold everything that the run did
MAX_FAILED_POLLS = 20  # in a row: the service is gone


def run_policy(
    service: Service,
    config: LoadtestConfig,
    policy: Policy,
    run: int,
    model: str,
    arrivals: Sequence[Arrival],
    out_dir: Path,
    progress: Progress,
) -> tuple[tuple[RequestRecord, ...], tuple[TimelineSample, ...]]:
    """Replay the arrivals under one policy; returns its requests and timeline."""
    status = service.direct(DIRECTIVES[policy], SETTLE_LIMIT_S, progress.say)
    _cool_down(config.cooldown_s, policy, progress)
    samples = [TimelineSample(policy=policy, at_s=0.0, status=status)]
    failed_polls = 0

    def poll(elapsed_s: float, event: Event) -> None:
        nonlocal failed_polls
        if elapsed_s <= 0:  # the sender is ready, the first request is not due
            return
        try:
            samples.append(TimelineSample(policy=policy, at_s=elapsed_s, status=service.status()))
            failed_polls = 0
        except ServiceError:
            failed_polls += 1
            if failed_polls >= MAX_FAILED_POLLS:
                raise
        latest = samples[-1].status
        progress.say(
            f"{policy}: {max(elapsed_s, 0):.0f}/{config.duration_s:.0f} s, {event.sent}/{len(arrivals)} sent, "
            f"{event.in_flight} in flight, {event.done} done, {event.errors} errors; "
            f"{latest.waiting} waiting, mode {shown_mode(samples[-1])}"
        )

    plan = Plan(
        kind="open",
        policy=policy,
        run=run,
        url=service.url,
        model=model,
        requests=tuple(
            PlannedRequest(at_s=a.at_s, prompt_tokens=a.prompt_tokens, output_tokens=a.output_tokens) for a in arrivals
        ),
        duration_s=config.duration_s,
        drain_s=config.drain_s,
        request_timeout_s=config.request_timeout_s,
        seed=config.seed,
        token_ids=config.token_ids,
        records_path=out_dir / f"requests-{policy}.jsonl",
    )
    records = run_plan(plan, poll)
    time.sleep(SNAPSHOT_S)
    poll(max(samples[-1].at_s, 0.0) + SNAPSHOT_S, Event(event="end", sent=len(records), done=len(records)))
    return records, tuple(samples)


def shown_mode(sample: TimelineSample) -> str:
    """Modes of the replicas' last steps, for the progress line."""
    modes = sorted({replica.mode for replica in sample.status.replicas})
    return "+".join(modes) or sample.status.mode


def _cool_down(cooldown_s: float, policy: Policy, progress: Progress) -> None:
    deadline_s = time.monotonic() + cooldown_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        progress.say(f"{policy}: cooling down, {left_s:.0f} s left")
        time.sleep(min(left_s, 0.5))
