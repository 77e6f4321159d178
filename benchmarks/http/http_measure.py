"""Puts one load on one system and returns what it did: figures of the client, processor time of the system's processes."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import stream_client
from benchmarks.client.stream_client import ClientRun
from benchmarks.http.http_engine import EngineProcess
from benchmarks.http.http_load import HttpLoad
from benchmarks.http.http_procs import Process, path_s, tree, used_s
from benchmarks.http.http_stats import Figures, MeasuredSpan, figures
from benchmarks.http.http_systems import RunningSystem

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one system did under one load."""

    figures: Figures
    spent_s: dict[str, float]  # processor time by role in the window; empty where its processes cannot be seen
    client_us_per_token: float
    load: ClientRun

    def us_per_token(self, seconds: float) -> float | None:
        return seconds * 1e6 / self.figures.tokens if self.spent_s and self.figures.tokens else None

    @property
    def path_us_per_token(self) -> float | None:
        """Processor time of all processes but the engine's, per token."""
        return self.us_per_token(path_s(self.spent_s))

    def by_role(self) -> str:
        """Return the processor time per token of each role, the largest first."""
        parts = {role: self.us_per_token(seconds) or 0.0 for role, seconds in self.spent_s.items()}
        return " ".join(f"{role}:{us:.1f}" for role, us in sorted(parts.items(), key=lambda p: -p[1]) if us >= 0.05)


def measure(
    system: RunningSystem | EngineProcess, scenario: HttpLoad, model_id: str, prompts: Sequence[str]
) -> Measurement:
    """Run a load and return its figures. Takes at most the scenario's time.

    Raises:
        RuntimeError: when the client fails or not one request of the window was answered.
    """
    plan = scenario.plan(model_id, prompts)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(system, RunningSystem):
            client = stream_client.start(system.url, PATH, plan, Path(folder) / "requests")
        else:
            system.start(plan)
        window, before, after = look(system.pid, scenario)
        load = stream_client.finish(client, plan.limit_s + 10) if isinstance(system, RunningSystem) else system.finish()
    found = figures(load, window)
    if not found.requests:
        raise RuntimeError(f"{scenario.name}: no request was answered ({found.errors}); {' '.join(load.errors)[:1000]}")
    tokens = sum(record.tokens for record in load.records)
    return Measurement(found, used_s(before, after), load.client_s * 1e6 / max(1, tokens), load)


def look(pid: int | None, scenario: HttpLoad) -> tuple[MeasuredSpan, list[Process], list[Process]]:
    """Wait for a window's begin and end; return it with a system's processes at both."""
    time.sleep(scenario.warm_s)
    begin_s, before = time.monotonic(), tree(pid) if pid else []
    time.sleep(max(0.0, begin_s + scenario.window_s - time.monotonic()))
    end_s, after = time.monotonic(), tree(pid) if pid else []
    return MeasuredSpan(begin_s, end_s), before, after
