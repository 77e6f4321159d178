"""What the service carries in FP16, where the rate of the load is a fraction of it.

A closed loop keeps so many users busy. Tokens are counted after the start-up, whether or not their requests were cut at the end, so
that a short loop is not biased against long answers.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from loadtest.progress import Progress
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import CUT, PlannedRequest, SendPlan
from loadtest.service.admin import ServiceClient
from workload.records import RequestRecord
from workload.traces import Arrival

WARM_SHARE = 0.3  # of the closed loop is start-up and not counted
REFUSALS = (429, 503)  # admission control: the service says itself that it carries no more
RUN = 1000  # part of the prompts: no run finds them in the prefix cache


def carried_rps(
    service: ServiceClient,
    config: LoadtestConfig,
    model: str,
    load: Sequence[Arrival],
    work_dir: Path,
    progress: Progress,
) -> float:
    """Return the requests of this load per second that the service carries in FP16, or a plain server as it is.

    Raises:
        LoadtestError: requests failed for another reason than a refusal, or no token came back.
    """
    if config.directed:
        service.direct("fp16", config.settle_limit_s, progress.say)
    plan = SendPlan(
        kind="closed", policy="probe", run=RUN, url=service.url, allow_host=config.allow_host, model=model,
        requests=tuple(PlannedRequest.of(arrival) for arrival in load[:2000]), duration_s=config.probe_s,
        users=config.probe_users, request_timeout_s=config.request_timeout_s, seed=config.seed,
        records_path=work_dir / "probe.jsonl",
    )  # fmt: skip
    records = run_plan(
        plan, lambda elapsed_s, event: progress.say(f"calibrating: {elapsed_s:.0f} s, {event.done} done"), service.key
    )
    found_rps = carried(records, config.probe_s, mean(arrival.output_tokens for arrival in load))
    progress.note(f"the service carried {found_rps:.2f} requests/s with {config.probe_users} at once")
    return found_rps


def carried(records: Sequence[RequestRecord], probe_s: float, mean_output_tokens: float) -> float:
    """Return what a closed loop got through, in requests of the mean length per second. Raises as ``carried_rps``."""
    failed = [record.error for record in records if record.error and record.status not in REFUSALS]
    if errors := [error for error in failed if not error.startswith(CUT)]:
        raise LoadtestError(
            f"calibration: {len(errors)} of {len(records)} requests failed, the first with: {errors[0]}"
        )
    begin_s = WARM_SHARE * probe_s
    tokens = tokens_between(records, begin_s, probe_s)
    if not tokens:
        raise LoadtestError(
            f"calibration: no token came back in {probe_s:g} s of the probe; raise --probe, "
            "shorten the requests (--length-scale), or give --rate"
        )
    return tokens / (probe_s - begin_s) / mean_output_tokens


def tokens_between(records: Sequence[RequestRecord], begin_s: float, end_s: float) -> float:
    """Output tokens that arrived in [begin_s, end_s)."""
    tokens = 0.0
    for record in records:
        times_s = [record.intended_s + at_ms / 1e3 for at_ms in record.chunk_ms]
        per_chunk = record.output_tokens / len(times_s) if times_s else 0.0
        tokens += per_chunk * sum(begin_s <= at_s < end_s for at_s in times_s)
    return tokens
