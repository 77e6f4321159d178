"""Measure what the service carries, then choose rate and SLO from it. The choices are pure; probes go through dispatch.

One request at a time gives the unloaded latency. Then, in each precision, a closed loop whose number of users doubles, stage by
stage, until another doubling brings less than 5 % more output tokens per second: the rate that the service carries. Tokens are
counted after each stage's start-up, whether or not their requests were cut at the end, so that short stages are not biased
against long answers.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Literal

from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from loadtest.progress import Progress
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import CUT, WARM_SHARE, Event, PlannedRequest, SendPlan
from loadtest.service.admin import ServiceClient
from workload.frozen import FrozenModel
from workload.records import RequestRecord
from workload.slo import Slo
from workload.traces import Arrival

FIRST_USERS = 8
MIN_GROWTH = 0.05
REFUSALS = (429, 503)  # admission control: the service says itself that it carries no more

ProbeMode = Literal["fp16", "fp8", "plain"]


class Stage(FrozenModel):
    """A closed loop of so many users."""

    users: int
    tokens_per_s: float  # output


class Capacity(FrozenModel):
    """What the service carried of this load's requests."""

    mode: ProbeMode
    carried_rps: float
    users: int  # with which it was reached
    stages: tuple[Stage, ...]


class Calibration(FrozenModel):
    """What the probes found; what the command line gave was not measured."""

    probe_s: float  # of a stage
    mean_prompt_tokens: float
    mean_output_tokens: float
    unloaded_requests: int | None = None
    unloaded_ttft_ms: float | None = None
    unloaded_tpot_ms: float | None = None
    capacities: tuple[Capacity, ...] = ()


def calibrate(
    service: ServiceClient,
    config: LoadtestConfig,
    model: str,
    load: Sequence[Arrival],
    work_dir: Path,
    progress: Progress,
) -> Calibration:
    """Run the probes that the configuration needs; a service that takes directives is left in FP8."""
    prompt_tokens, output_tokens = mean(a.prompt_tokens for a in load), mean(a.output_tokens for a in load)
    typical = (PlannedRequest(at_s=0.0, prompt_tokens=round(prompt_tokens), output_tokens=round(output_tokens)),)
    mixed = tuple(
        PlannedRequest(at_s=0.0, prompt_tokens=a.prompt_tokens, output_tokens=a.output_tokens) for a in load[:2000]
    )

    def probe(
        name: str, run: int, mode: ProbeMode, stages: tuple[int, ...], requests: tuple[PlannedRequest, ...]
    ) -> tuple[tuple[RequestRecord, ...], tuple[int, ...]]:
        if mode != "plain":
            service.direct(mode, config.settle_limit_s, progress.say)
        plan = SendPlan(
            kind="closed", policy="probe", run=run, url=service.url, allow_host=config.allow_host, model=model,
            requests=requests, duration_s=config.probe_s, stages=stages, min_growth=MIN_GROWTH,
            request_timeout_s=config.request_timeout_s, seed=config.seed, token_ids=config.token_ids,
            records_path=work_dir / f"probe-{name}.jsonl",
        )  # fmt: skip
        run_stages: list[int] = []

        def tick(elapsed_s: float, event: Event) -> None:
            if event.event == "stage":
                run_stages.append(event.users)
                return
            if event.event == "end" or elapsed_s <= 0:  # all users are gone, or not there yet
                return
            users = run_stages[-1] if run_stages else 0
            progress.say(f"calibrating, {name}: {elapsed_s:.0f} s, {users} at once, {event.done} done")

        return run_plan(plan, tick, service.key), tuple(run_stages)

    found: dict[str, object] = {}
    if config.slo_ttft_ms is None or config.slo_tpot_ms is None:
        records, _ = probe("unloaded", 1000, "fp16" if config.directed else "plain", (1,), typical)
        ttft_ms, tpot_ms, count = unloaded_latency(records)
        found |= {"unloaded_ttft_ms": ttft_ms, "unloaded_tpot_ms": tpot_ms, "unloaded_requests": count}
    capacities = []
    if config.rate_rps is None:
        modes: tuple[ProbeMode, ...] = ("fp16", "fp8") if config.directed else ("plain",)
        for run, mode in enumerate(modes, start=1001):
            records, stages = probe(f"capacity-{mode}", run, mode, user_stages(config.probe_concurrency), mixed)
            capacities.append(capacity(mode, records, stages, config.probe_s, output_tokens))
            progress.note(capacity_text(capacities[-1]))
    return Calibration.model_validate(
        {
            "probe_s": config.probe_s,
            "mean_prompt_tokens": prompt_tokens,
            "mean_output_tokens": output_tokens,
            "capacities": tuple(capacities),
            **found,
        }
    )


def user_stages(most: int) -> tuple[int, ...]:
    """Numbers of users to try: doubled from 8 to ``most``."""
    stages = [min(FIRST_USERS, most)]
    while stages[-1] < most:
        stages.append(min(2 * stages[-1], most))
    return tuple(stages)


def unloaded_latency(records: Sequence[RequestRecord]) -> tuple[float, float | None, int]:
    """Median TTFT and TPOT, and the number of requests they come from; the first one only warms up if more followed."""
    _refuse_errors(records)
    answered = [record for record in records if record.ttft_ms is not None]
    used = answered[1:] or answered
    if not used:
        raise LoadtestError(
            "calibration: no token came back from a single request; raise --probe or shorten the requests"
        )
    tpots_ms = [record.tpot_ms for record in used if record.tpot_ms is not None]
    return median(r.ttft_ms for r in used if r.ttft_ms is not None), median(tpots_ms) if tpots_ms else None, len(used)


def tokens_between(records: Sequence[RequestRecord], begin_s: float, end_s: float) -> float:
    """Output tokens that arrived in [begin_s, end_s)."""
    tokens = 0.0
    for record in records:
        times_s = [record.intended_s + at_ms / 1e3 for at_ms in record.chunk_ms]
        per_chunk = record.output_tokens / len(times_s) if times_s else 0.0
        tokens += per_chunk * sum(begin_s <= at_s < end_s for at_s in times_s)
    return tokens


def capacity(
    mode: ProbeMode,
    records: Sequence[RequestRecord],
    users: Sequence[int],
    stage_s: float,
    mean_output_tokens: float,
) -> Capacity:
    """What a closed loop with so many users a stage got through, in requests of the mean length.

    Raises:
        LoadtestError: requests failed for another reason than a refusal, or no token came back.
    """
    _refuse_errors([record for record in records if record.status not in REFUSALS])
    stages = []
    for number, count in enumerate(users):
        begin_s, end_s = (number + WARM_SHARE) * stage_s, (number + 1) * stage_s
        per_s = tokens_between(records, begin_s, end_s) / (end_s - begin_s)
        stages.append(Stage(users=count, tokens_per_s=per_s))
    best = max(stages, key=lambda stage: stage.tokens_per_s, default=None)
    if best is None or not best.tokens_per_s:
        raise LoadtestError(
            f"calibration: no token came back in {stage_s:g} s of the probe; raise --probe, "
            "shorten the requests (--length-scale), or give --rate, --slo-ttft-ms and --slo-tpot-ms"
        )
    carried_rps = best.tokens_per_s / mean_output_tokens
    return Capacity(mode=mode, carried_rps=carried_rps, users=best.users, stages=tuple(stages))


def capacity_text(found: Capacity) -> str:
    """One sentence."""
    return f"{found.mode} carried {found.carried_rps:.2f} requests/s with {found.users} at once"


def base_rps(calibration: Calibration) -> float:
    """The carried rate that loads are fractions of: in FP16, or of the plain server."""
    return calibration.capacities[0].carried_rps


def choose_rate_rps(config: LoadtestConfig, calibration: Calibration | None) -> float:
    """The given rate, or the fraction of what FP16 carried, at most what --max-requests allows."""
    if config.rate_rps is not None:
        return config.rate_rps
    assert calibration is not None, "without a rate there is a calibration"
    return min(config.load_fraction * base_rps(calibration), config.max_requests / config.duration_s)


def choose_slo(config: LoadtestConfig, calibration: Calibration | None) -> Slo:
    """The given SLO; what is not given is ``slo_factor`` times the unloaded latency."""
    ttft_ms, tpot_ms = config.slo_ttft_ms, config.slo_tpot_ms
    if calibration is not None:
        if ttft_ms is None and calibration.unloaded_ttft_ms is not None:
            ttft_ms = config.slo_factor * calibration.unloaded_ttft_ms
        if tpot_ms is None and calibration.unloaded_tpot_ms is not None:
            tpot_ms = config.slo_factor * calibration.unloaded_tpot_ms
    if ttft_ms is None or tpot_ms is None:
        raise LoadtestError("calibration: the answers are too short to measure a TPOT; give --slo-tpot-ms")
    return Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def _refuse_errors(records: Sequence[RequestRecord]) -> None:
    errors = [record.error for record in records if record.error and not record.error.startswith(CUT)]
    if errors:
        raise LoadtestError(
            f"calibration: {len(errors)} of {len(records)} requests failed, the first with: {errors[0]}"
        )
