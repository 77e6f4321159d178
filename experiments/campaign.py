"""Runs an experiment: every system is started once; every run, rate and seed is one load test against it."""

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http import http_procs
from benchmarks.http.http_systems import RunningSystem
from experiments import systems
from experiments.config import Experiment, ExperimentError, Kill, Run
from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from loadtest.progress import Progress
from loadtest.service.admin import ServiceClient
from loadtest.session import run_loadtest
from workload.traces import TraceError

REPLICAS_LIMIT_S = 600.0  # for replicas that were killed to come back
Cell = tuple[int, float, Run]  # seed, requests/s and run of one load test


def loadtest_of(
    experiment: Experiment, run: Run, rate_rps: float, seed: int, trace: Path, url: str, out: Path
) -> LoadtestConfig:
    """Return the load test of a run."""
    return LoadtestConfig(
        **experiment.load.model_dump(exclude={"rates_rps", "seeds"}),
        url=url,
        trace=trace,
        rate_rps=rate_rps,
        seed=seed,
        context_tokens=experiment.engine.max_model_len,
        slo_ttft_ms=experiment.slo.ttft_ms,
        slo_tpot_ms=experiment.slo.tpot_ms,
        policies=((run.directive or "adaptive") if run.system == "nestedfp" else f"plain-{run.name}",),
        exact_share=run.exact_share,
        session_share=run.session_share,
        out=out,
    )


@dataclass(frozen=True)
class Campaign:
    """An experiment on a trace; reports go to ``out/runs/<run>/<rate>-<seed>``, what happens to ``say``.

    With ``step_log`` every engine of the service keeps a log of its steps there.
    """

    experiment: Experiment
    trace: Path
    out: Path
    say: Callable[[str], None]
    step_log: Path | None = None

    def measure(self, wanted: Sequence[str], port: int, deadline_s: float = float("inf")) -> bool:
        """Run the runs of these names; reports that are there already are left.

        Begins no load test that could not end before ``deadline_s`` of ``time.monotonic``. Returns whether every one ended
        well; what failed is said, and the others go on.
        """
        whole = True
        load = self.experiment.load
        chosen = sorted((run for run in self.experiment.runs if run.name in wanted), key=_start)
        for (system, budget_tokens), group in itertools.groupby(chosen, _start):
            experiment = self.experiment
            if budget_tokens:
                engine = experiment.engine.model_copy(update={"max_num_batched_tokens": budget_tokens})
                experiment = experiment.model_copy(update={"engine": engine})
            # Seeds outermost, policies innermost: a campaign that is cut off has compared all policies on whole loads.
            cells = list(itertools.product(load.seeds, load.rates_rps, group))
            cells = [cell for cell in cells if not any(self.folder_of(*cell).glob("*/summary.json"))]
            for together in self.starts(cells):
                budget = f" with {budget_tokens} tokens a step" if budget_tokens else ""
                self.say(f"starting {system}{budget}")
                whole &= self._serve(experiment, system, together, port, deadline_s)
        return whole

    def starts(self, cells: list[Cell]) -> list[list[Cell]]:
        """Return the load tests of each start of a system: all, or one where a prefix cache would have another's prompts."""
        if self.experiment.engine.enable_prefix_caching:
            return [[cell] for cell in cells]
        return [cells] if cells else []

    def _serve(self, experiment: Experiment, system: str, cells: list[Cell], port: int, deadline_s: float) -> bool:
        """Start a system and run load tests against it; True when all ended well."""
        whole, load = True, experiment.load
        began_s = time.monotonic()
        try:
            started = systems.running(experiment, system, port, self.out / "logs", self.step_log)
            with started as (service, settings):
                self.say(f"{system}: ready after {time.monotonic() - began_s:.0f} s")
                for seed, rate, run in cells:
                    if system == "nestedfp":
                        limit_s = min(REPLICAS_LIMIT_S, max(0.0, deadline_s - time.monotonic()))
                        with ServiceClient(service.url, None) as client:
                            systems.wait_until_whole(client, self.experiment.replicas, limit_s, self.say)
                    if time.monotonic() + load.duration_s + load.cooldown_s + load.drain_s > deadline_s:
                        self.say(f"no time left for {run.name} at {rate:g} requests/s, seed {seed}")
                        whole = False
                    else:
                        whole &= self._one(seed, rate, run, service, settings)
        except ExperimentError as error:
            self.say(f"error: {system}: {error}")
            whole = False
        return whole

    def folder_of(self, seed: int, rate_rps: float, run: Run) -> Path:
        """Return the folder of one load test."""
        return self.out / "runs" / run.name / f"{rate_rps:g}-{seed}"

    def _one(self, seed: int, rate_rps: float, run: Run, service: RunningSystem, settings: Path) -> bool:
        """One load test, and what is killed during it; True when it ended well."""
        target = self.folder_of(seed, rate_rps, run)
        target.parent.mkdir(parents=True, exist_ok=True)
        log = target.with_name(f"{target.name}.log")  # 3.5-0 has no suffix
        what, ended = f"{run.name} at {rate_rps:g} requests/s, seed {seed}", threading.Event()
        try:
            if run.system == "nestedfp":
                systems.steer(service, settings, self.experiment, run)
            if run.kill is not None:
                threading.Thread(target=_kill, args=(run.kill, service, target, ended, self.say), daemon=True).start()
            asked = loadtest_of(self.experiment, run, rate_rps, seed, self.trace, service.url, target)
            with log.open("w") as file:
                run_loadtest(asked, Progress(file), service.key)
        except (LoadtestError, TraceError) as error:
            self.say(f"error: {what}: {error}")
            return False
        except KeyboardInterrupt:
            shutil.rmtree(target, ignore_errors=True)  # a part of a load test is no result
            self.say(f"interrupted: {what} is not kept")
            raise
        finally:
            ended.set()
        found = next(line for line in reversed(log.read_text().splitlines()) if "within the SLO" in line)
        self.say(f"{what}: {found}")
        return True


def _start(run: Run) -> tuple[str, int]:
    """The system that a run needs, and its own budget of a step; 0: the experiment's."""
    return run.system, run.max_num_batched_tokens or 0


def _kill(kill: Kill, service: RunningSystem, target: Path, ended: threading.Event, say: Callable[[str], None]) -> None:
    """Wait until requests arrive and end one process of the service without a warning."""
    while not list(target.glob("*/requests-*.jsonl")):  # opened when the sender starts
        if ended.wait(0.05):
            return
    time.sleep(kill.at_s)
    found = http_procs.of_role(service.pid, kill.process)
    if not found:
        say(f"error: no process of the kind {kill.process} to kill")
        return
    os.kill(found[0], signal.SIGKILL)
    say(f"killed {kill.process} {found[0]}")
