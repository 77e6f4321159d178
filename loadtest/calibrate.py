"""Measure what the service carries, then choose rate and SLO from it. The choices are pure; probes go through dispatch.

Three bounded probes, each ``probe_s`` long: one request at a time in FP16 (the unloaded latency), then a closed loop of
``probe_concurrency`` users in FP16 and in FP8 (the capacity). Capacity is counted in output tokens over the part of the
probe after its start-up, divided by the mean output length: requests that are cut at the end still count with the
tokens they got, so a short probe is not biased against long answers.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Literal

from controller.schema import Record
from loadtest.admin import Service
from loadtest.config import LoadtestConfig
from loadtest.dispatch import run_plan
from loadtest.errors import LoadtestError
from loadtest.metrics import Slo
from loadtest.plan import Event, Plan, PlannedRequest
from loadtest.progress import Progress
from loadtest.records import RequestRecord
from loadtest.trace import Arrival

WARM_SHARE = 0.3  # of a capacity probe is start-up and not counted
SETTLE_LIMIT_S = 120.0


class Calibration(Record):
    """What the probes found."""

    probe_s: float
    probe_concurrency: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    unloaded_requests: int
    unloaded_ttft_ms: float
    unloaded_tpot_ms: float | None
    fp16_capacity_rps: float
    fp8_capacity_rps: float


def calibrate(
    service: Service, config: LoadtestConfig, model: str, load: Sequence[Arrival], work_dir: Path, progress: Progress
) -> Calibration:
    """Run the three probes; leaves the service in FP8."""
    prompt_tokens, output_tokens = mean(a.prompt_tokens for a in load), mean(a.output_tokens for a in load)
    typical = (PlannedRequest(at_s=0.0, prompt_tokens=round(prompt_tokens), output_tokens=round(output_tokens)),)
    mixed = tuple(
        PlannedRequest(at_s=0.0, prompt_tokens=a.prompt_tokens, output_tokens=a.output_tokens) for a in load[:2000]
    )

    def probe(
        name: str, run: int, mode: Literal["fp16", "fp8"], users: int, requests: tuple[PlannedRequest, ...]
    ) -> tuple[RequestRecord, ...]:
        service.direct(mode, SETTLE_LIMIT_S, progress.say)
        plan = Plan(
            kind="closed", policy="probe", run=run, url=service.url, model=model, requests=requests,
            duration_s=config.probe_s, concurrency=users, request_timeout_s=config.request_timeout_s,
            seed=config.seed, token_ids=config.token_ids, records_path=work_dir / f"probe-{name}.jsonl",
        )  # fmt: skip

        def tick(elapsed_s: float, event: Event) -> None:
            progress.say(f"calibrating, {name}: {elapsed_s:.0f}/{config.probe_s:.0f} s, {event.done} done")

        return run_plan(plan, tick)

    ttft_ms, tpot_ms, count = unloaded_latency(probe("unloaded", 1000, "fp16", 1, typical))
    loaded: dict[str, float] = {}
    modes: tuple[tuple[Literal["fp16", "fp8"], int], ...] = (("fp16", 1001), ("fp8", 1002))
    for mode, run in modes:
        records = probe(f"capacity-{mode}", run, mode, config.probe_concurrency, mixed)
        loaded[mode] = capacity_rps(records, config.probe_s, output_tokens)
    return Calibration(
        probe_s=config.probe_s,
        probe_concurrency=config.probe_concurrency,
        mean_prompt_tokens=prompt_tokens,
        mean_output_tokens=output_tokens,
        unloaded_requests=count,
        unloaded_ttft_ms=ttft_ms,
        unloaded_tpot_ms=tpot_ms,
        fp16_capacity_rps=loaded["fp16"],
        fp8_capacity_rps=loaded["fp8"],
    )


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


def capacity_rps(records: Sequence[RequestRecord], probe_s: float, mean_output_tokens: float) -> float:
    """Requests per second that the closed loop got through, counted in output tokens."""
    _refuse_errors(records)
    begin_s = WARM_SHARE * probe_s
    tokens = 0.0
    for record in records:
        times_s = [record.intended_s + at_ms / 1e3 for at_ms in record.chunk_ms]
        per_chunk = record.output_tokens / len(times_s) if times_s else 0.0
        tokens += per_chunk * sum(begin_s <= at_s < probe_s for at_s in times_s)
    if not tokens:
        raise LoadtestError(
            f"calibration: no token came back between {begin_s:g} and {probe_s:g} s of the probe; raise --probe, "
            "shorten the requests (--length-scale), or give --rate, --slo-ttft-ms and --slo-tpot-ms"
        )
    return tokens / (probe_s - begin_s) / mean_output_tokens


def choose_rate_rps(config: LoadtestConfig, calibration: Calibration | None) -> float:
    """The given rate, or the fraction of FP16 capacity, at most what --max-requests allows."""
    if config.rate_rps is not None:
        return config.rate_rps
    assert calibration is not None, "without a rate there is a calibration"
    return min(config.load_fraction * calibration.fp16_capacity_rps, config.max_requests / config.duration_s)


def choose_slo(config: LoadtestConfig, calibration: Calibration | None) -> Slo:
    """The given SLO; what is not given is ``slo_factor`` times the unloaded latency."""
    ttft_ms, tpot_ms = config.slo_ttft_ms, config.slo_tpot_ms
    if calibration is not None:
        ttft_ms = ttft_ms or config.slo_factor * calibration.unloaded_ttft_ms
        if tpot_ms is None and calibration.unloaded_tpot_ms is not None:
            tpot_ms = config.slo_factor * calibration.unloaded_tpot_ms
    if ttft_ms is None or tpot_ms is None:
        raise LoadtestError("calibration: the answers are too short to measure a TPOT; give --slo-tpot-ms")
    return Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def _refuse_errors(records: Sequence[RequestRecord]) -> None:
    errors = [record.error for record in records if record.error and not record.error.startswith("cut at the end")]
    if errors:
        raise LoadtestError(
            f"calibration: {len(errors)} of {len(records)} requests failed, the first with: {errors[0]}"
        )
