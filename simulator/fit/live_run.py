"""A finished run of the load test, read back: its requests, its mode over time, and the engine steps behind them.

The steps are reconstructed from the moments at which tokens arrived. Tokens that arrive together (``TOGETHER_S``) come
from one step; a request's first token says that the step computed its prompt. A step lasted from the one before, if a
request was inside the engine all that time; steps that begin on an idle engine are used for the front end's share of the
TTFT only, because their start is not seen. Two tokens of one request that arrive together are two steps that the way
to the client has pushed together; they are left out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nestedfp.modes import Mode
from simulator.errors import SimulationError
from simulator.fit.observations import StepSize, StepTiming

TOGETHER_S = 0.005
PHASES = ("fp16", "fp8", "adaptive")


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One answered request of a phase."""

    at_s: float  # intended, after the start of the phase
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float | None
    token_s: tuple[float, ...]  # when tokens arrived, after the start of the phase


@dataclass(frozen=True, slots=True)
class Phase:
    """One policy's part of the run."""

    requests: tuple[LiveRequest, ...]
    modes: tuple[tuple[float, str], ...]  # when the cluster's mode was seen to change, and to what
    fp16_token_share: float | None


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A folder that the load test wrote."""

    model: str
    replicas: int
    duration_s: float
    service_config: str | None
    phases: dict[str, Phase]


def read_run(folder: Path) -> LiveRun:
    """Read a run.

    Raises:
        SimulationError: when files are missing or are not those of a load test.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        samples = _lines(folder / "timeline.jsonl")
        requests = {phase: _lines(folder / f"requests-{phase}.jsonl") for phase in PHASES}
        return LiveRun(
            model=summary["model"],
            replicas=max(len(sample["status"]["replicas"]) for sample in samples),
            duration_s=summary["load"]["duration_s"],
            service_config=summary["options"].get("service_config"),
            phases={
                phase: Phase(
                    tuple(_request(record) for record in requests[phase] if record["error"] is None),
                    _modes([sample for sample in samples if sample["policy"] == phase]),
                    _fp16_share(requests[phase]),
                )
                for phase in PHASES
            },
        )
    except OSError as error:
        raise SimulationError(
            f"{error.filename}: cannot read ({error.strerror}); expected the folder of a load test with the phases "
            f"{', '.join(PHASES)}"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise SimulationError(f"{folder}: not the files of a load test: {error!r}") from error


def steps_of(phase: Phase) -> list[StepTiming]:
    """The steps of a phase whose duration can be seen."""
    events = sorted(
        (at_s, number, index)
        for index, request in enumerate(phase.requests)
        for number, at_s in enumerate(request.token_s)
    )
    observations, previous_s, group = [], 0.0, list[tuple[float, int, int]]()
    for event in [*events, None]:
        if event is not None and (not group or event[0] - group[-1][0] <= TOGETHER_S):
            group.append(event)
            continue
        if group and len({index for *_, index in group}) == len(group) and _busy(phase.requests, previous_s, group):
            observations.append(_observation(phase.requests, group, group[-1][0] - previous_s))
        if group:
            previous_s = group[-1][0]
        group = [event] if event is not None else []
    return observations


def front_end_s(phase: Phase, prefill_s: dict[int, float]) -> float:
    """Median of what a request on an idle engine waits beyond its prefill step: network, HTTP, tokenising."""
    extra = []
    for index, request in enumerate(phase.requests):
        alone = all(
            other.token_s[-1] < request.at_s or other.at_s > request.token_s[0]
            for number, other in enumerate(phase.requests)
            if number != index
        )
        if alone:
            extra.append(request.token_s[0] - request.at_s - prefill_s[request.prompt_tokens])
    return max(0.0, median(extra)) if extra else 0.0


def _busy(requests: Sequence[LiveRequest], since_s: float, group: Sequence[tuple[float, int, int]]) -> bool:
    """Whether a request of the step was in the engine when the step before ended, so that it began right then."""
    return any(number > 0 or requests[index].at_s < since_s for _, number, index in group)


def _observation(
    requests: Sequence[LiveRequest], group: Sequence[tuple[float, int, int]], seconds: float
) -> StepTiming:
    prefill = sum(requests[index].prompt_tokens for _, number, index in group if number == 0)
    decodes = [(number, index) for _, number, index in group if number > 0]
    kv_tokens = sum(requests[index].prompt_tokens + number - 1 for number, index in decodes)
    return StepTiming(((StepSize(prefill + len(decodes), len(decodes), kv_tokens), 1),), seconds)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _request(record: dict[str, Any]) -> LiveRequest:
    return LiveRequest(
        at_s=record["intended_s"],
        prompt_tokens=record["prompt_tokens"],
        output_tokens=record["output_tokens"],
        ttft_ms=record["ttft_ms"],
        tpot_ms=record["tpot_ms"],
        token_s=tuple(record["intended_s"] + chunk_ms * 1e-3 for chunk_ms in record["chunk_ms"]),
    )


def _modes(samples: Sequence[dict[str, Any]]) -> tuple[tuple[float, str], ...]:
    changes: list[tuple[float, str]] = []
    for sample in samples:
        mode = sample["status"]["mode"]
        if not changes or changes[-1][1] != mode:
            changes.append((sample["at_s"], mode))
    return tuple(changes)


def _fp16_share(records: Sequence[dict[str, Any]]) -> float | None:
    counts = dict.fromkeys(Mode, 0)
    for record in records:
        for part in (record["precision_tokens"] or {}).values():
            for mode in Mode:
                counts[mode] += part[mode.value]
    total = sum(counts.values())
    return counts[Mode.FP16] / total if total else None
