"""Search a policy's parameters on a load.

    python -m simulator tune --trace FILE --policy slo_auto --replicas 4 --load 0.8 \\
        --constraint "tight_slo>=0.99" --maximise fp16_token_share --out best.yaml

A trial is one simulation for each load. The search is Optuna's tree-structured Parzen estimator with constraints: trials
that hold them come before those that do not, and among these the one that misses least. It was chosen over scipy's
differential evolution, which needs hundreds of trials where this needs tens. The first trial has the parameters as they
are, so that the result is never worse. The same arguments and seed give the same trials.

Written are the controller's section, ready to be put into a service's configuration, and a CSV of all trials. Exit
status: 0 found, 1 failed, 2 wrong arguments, 3 no trial held the constraints (nothing but the CSV is written).
"""

import argparse
import csv
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import optuna
import yaml

from controller.config import ControllerConfig
from controller.policies import POLICIES
from simulator import arguments
from simulator.bench import Bench, make_config
from simulator.cluster.scenario import Scenario
from simulator.errors import SimulationError
from simulator.run import Job, run_one
from simulator.search import goal, space
from simulator.simulation_summary import SimulationSummary
from workload.azure import TraceError

INVALID_PER_TRIAL = 50  # draws that the policy's model refuses, before the space is called wrong
UNMEASURED = 1e9  # stands for infinity, which the optimiser refuses


@dataclass(frozen=True, slots=True)
class TuneTask:
    """A checked command line."""

    bench: Bench
    section: dict[str, Any]
    policy: str
    parameters: tuple[space.Parameter, ...]
    scenario: Scenario
    loads: tuple[float | None, ...]
    goal: goal.Goal

    def config(self, values: Mapping[str, float | int]) -> ControllerConfig:
        """The controller's configuration with other values of the parameters."""
        base = make_config(self.section, self.policy, self.bench).policy.model_dump(exclude_unset=True)
        changed = space.applied({**base, "name": self.policy}, values)
        return make_config({**self.section, "policy": changed}, self.policy, self.bench)

    def jobs(self, config: ControllerConfig) -> list[Job]:
        """One simulation for each load."""
        return [Job(self.bench, config, self.scenario, load, None, None) for load in self.loads]


@dataclass(frozen=True, slots=True)
class Trial:
    """Values, what came of them, and how good that is."""

    number: int
    values: dict[str, float | int]
    config: ControllerConfig
    runs: tuple[SimulationSummary, ...]
    score: goal.Score


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = arguments.make_parser("tune", __doc__)
    arguments.add_load(parser)
    arguments.add_cluster(parser)
    group = parser.add_argument_group("search")
    group.add_argument("--policy", metavar="NAME", help="(that of --config)")
    group.add_argument("--config", type=Path, metavar="YAML", help="the controller's section to start from")
    group.add_argument(
        "--parameters", metavar="NAME=LOW:HIGH,...", help="(those in use that the policy's model bounds on both sides)"
    )
    group.add_argument(
        "--constraint", action="append", required=True, metavar="C", help="tight_slo>=0.99, "
        "ttft_ms.p99<=500, tight_slo>=static_fp8-0.01; at every load; may repeat",
    )  # fmt: skip
    sought = group.add_mutually_exclusive_group()
    sought.add_argument("--maximise", metavar="NUMBER", help="mean over the loads (fp16_token_share)")
    sought.add_argument("--minimise", metavar="NUMBER")
    group.add_argument("--trials", type=int, default=40, metavar="K", help="(%(default)s)")
    group.add_argument(
        "--time-limit",
        type=float,
        default=600.0,
        metavar="S",
        help="of simulating; no trial begins later (%(default)g)",
    )
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at the same time (%(default)s)")
    group.add_argument("--out", type=Path, required=True, metavar="YAML", help="the trials go beside it, as .csv")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if given is None else given)
    parser = build_parser()
    args = parser.parse_args(words)
    try:
        task = plan(args)
    except (SimulationError, TraceError) as error:
        parser.exit(2, f"tune: {error}\n")
    try:
        trials = search(task, args.trials, args.jobs, args.time_limit, args.seed)
        write_trials(args.out.with_suffix(".csv"), task, trials)
        best = min(trials, key=lambda trial: trial.score.rank)
        report(task, trials[0], best)
        if not best.score.feasible:
            print(f"tune: none of {len(trials)} trials holds the constraints; that is the nearest one", file=sys.stderr)
            return 3
        args.out.write_text(as_yaml(task, best, words), encoding="utf-8")
    except (SimulationError, TraceError, OSError) as error:
        print(f"tune: {error}", file=sys.stderr)
        return 1
    print(f"written: {args.out}, {args.out.with_suffix('.csv')}")
    return 0


def plan(args: argparse.Namespace) -> TuneTask:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    loads = arguments.read_loads(args)
    arguments.check_folders(args.out)
    for name, value in (("--trials", args.trials), ("--jobs", args.jobs), ("--time-limit", args.time_limit)):
        if not value > 0:
            raise SimulationError(f"{name}: expected a number above 0, got {value:g}")
    if args.out.suffix == ".csv":
        raise SimulationError("--out: expected a YAML file; the trials take its name with .csv")
    objective = args.minimise or args.maximise or "fp16_token_share"
    goal.check_name("--minimise" if args.minimise else "--maximise", objective)
    sought = goal.Goal(tuple(map(goal.parse, args.constraint)), objective, args.minimise is None)
    section = arguments.read_section(args.config)
    named = section["policy"].get("name") if isinstance(section.get("policy"), dict) else None
    policy = args.policy or named
    if policy is None:
        raise SimulationError(f"expected --policy NAME, one of {', '.join(POLICIES)}, or --config with a policy")
    bench = arguments.read_bench(args)
    config = make_config(section, policy, bench)
    if args.parameters:
        parameters = space.given(args.parameters, POLICIES[policy].config)
    else:
        parameters = tuple(p for p in space.bounded(POLICIES[policy].config) if space.present(config.policy, [p]))
    if not parameters:
        raise SimulationError(f"{policy} has no parameter with two bounds; give --parameters, or take another policy")
    return TuneTask(bench, section, policy, parameters, arguments.make_scenario(args), tuple(loads), sought)


def search(task: TuneTask, trials: int, processes: int, limit_s: float, seed: int) -> list[Trial]:
    """Run up to ``trials`` trials, ``processes`` at a time; the one with the parameters as they are comes first."""
    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    axes = {p.name: _axis(p) for p in task.parameters}
    first = task.config({})
    if (now := space.present(first.policy, task.parameters)) is not None:
        study.enqueue_trial(now)
    done: list[Trial] = []
    with ExitStack() as stack:
        mapped = map
        if processes > 1:
            mapped = stack.enter_context(ProcessPoolExecutor(processes)).map  # type: ignore[assignment]
        names = {constraint.policy for constraint in task.goal.constraints if constraint.policy}
        known = _references(task, sorted(names), mapped)
        print(_head(task))
        spent_s = sum(run.wall_s for references in known for run in references.values()) / processes
        while len(done) < trials and spent_s < limit_s:
            batch = [_ask(task, study, axes) for _ in range(min(processes, trials - len(done)) if done else 1)]
            jobs = [task.jobs(config) for _, _, config in batch]
            summaries = iter(mapped(run_one, chain.from_iterable(jobs)))
            for asked, values, config in batch:
                runs = tuple(next(summaries) for _ in task.loads)
                spent_s += sum(run.wall_s for run in runs) / processes
                score = task.goal.score(runs, known)
                for index, missed in enumerate(score.violations):
                    asked.set_constraint(str(index), min(missed, UNMEASURED))
                study.tell(asked, max(score.value, -UNMEASURED))
                done.append(Trial(len(done), values, config, runs, score))
                print(_line(task, done[-1]), flush=True)
    if len(done) < trials:
        print(f"stopped after {len(done)} of {trials} trials: --time-limit {limit_s:g} s")
    return done


def _ask(
    task: TuneTask, study: optuna.Study, axes: Mapping[str, optuna.distributions.BaseDistribution]
) -> tuple[optuna.Trial, dict[str, float | int], ControllerConfig]:
    """The next values that the policy's model takes."""
    for _ in range(INVALID_PER_TRIAL):
        asked = study.ask(dict(axes))
        values = {p.name: p.rounded(asked.params[p.name]) for p in task.parameters}
        try:
            return asked, values, task.config(values)
        except SimulationError as error:
            refused = error
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
    raise SimulationError(f"the policy refuses nearly all values of the space; give other --parameters ({refused})")


def _axis(parameter: space.Parameter) -> optuna.distributions.BaseDistribution:
    if parameter.whole:
        return optuna.distributions.IntDistribution(
            round(parameter.low), round(parameter.high), log=parameter.by_logarithm
        )
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.by_logarithm)


def _references(task: TuneTask, policies: Sequence[str], mapped: Any) -> list[dict[str, SimulationSummary]]:
    """The policies that constraints name, at each load."""
    configs = {policy: make_config(task.section, policy, task.bench) for policy in policies}
    runs: Iterable[SimulationSummary] = iter(
        list(
            mapped(
                run_one, [job for load_jobs in zip(*map(task.jobs, configs.values()), strict=True) for job in load_jobs]
            )
        )
    )
    return [{policy: next(iter(runs)) for policy in policies} for _ in task.loads]


def _numbers(task: TuneTask) -> list[str]:
    return list(dict.fromkeys([*(constraint.name for constraint in task.goal.constraints), task.goal.objective]))


def _head(task: TuneTask) -> str:
    loads = ", ".join("the trace's own rate" if load is None else f"{load:g}" for load in task.loads)
    demands = ", ".join(map(str, task.goal.constraints))
    return (
        f"{task.policy} at load {loads}: {demands}; {'most' if task.goal.maximise else 'least'} {task.goal.objective}\n"
        f"{'trial':>5s} {'holds':>5s} {'by load: ' + ', '.join(_numbers(task))}"
    )


def _line(task: TuneTask, trial: Trial) -> str:
    found = " | ".join(
        " ".join(f"{value:.4g}" if (value := goal.number(run, name)) is not None else "?" for name in _numbers(task))
        for run in trial.runs
    )
    values = " ".join(f"{name}={value:g}" for name, value in trial.values.items())
    return f"{trial.number:5d} {'yes' if trial.score.feasible else 'no':>5s} {found}  {values}"


def report(task: TuneTask, first: Trial, best: Trial) -> None:
    """Say what the search brought."""
    print(f"as it was:  {_line(task, first)}")
    print(f"{'best' if best.score.feasible else 'nearest'}:       {_line(task, best)}")


def write_trials(path: Path, task: TuneTask, trials: Sequence[Trial]) -> None:
    """Every trial at every load, with all numbers of the run that a goal can name."""
    names = [p.name for p in task.parameters]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "holds", "load", *names, *goal.NAMES])
        for trial in trials:
            for run in trial.runs:
                values = [trial.values[name] for name in names]
                found = [goal.number(run, name) for name in goal.NAMES]
                writer.writerow([trial.number, trial.score.feasible, run.load, *values, *found])


def as_yaml(task: TuneTask, best: Trial, words: Sequence[str]) -> str:
    """The controller's section, with the SLO that it was tuned for."""
    policy = {"name": task.policy, **best.config.policy.model_dump(exclude_unset=True)}
    slo = {name: float(f"{value:.6g}") for name, value in best.config.slo.model_dump().items()}
    section = {**task.section, "policy": policy, "slo": slo}
    found = "; ".join(f"{name} {goal.number(run, name):.4g}" for run in best.runs for name in _numbers(task))
    return f"# python -m simulator tune {shlex.join(words)}\n# {found}\n" + yaml.safe_dump(
        {"controller": section}, sort_keys=False
    )
