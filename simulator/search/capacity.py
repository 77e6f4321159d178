"""How many replicas a trace needs, with NestedFP and without.

    python -m simulator capacity --trace FILE --rate 100 --slo "tight>=0.95" --policy slo_auto

For ``static_fp16`` (a service without NestedFP), ``static_fp8`` (one that always trades quality) and adaptive policies:
the smallest number of replicas that holds the SLO. The number is doubled until the SLO holds and then bisected, which
takes for granted that more replicas never do worse; both N and N - 1 have been simulated. All runs get the same requests.

Exit status: 0 every policy has an answer, 1 failed, 2 wrong arguments, 3 a policy needs more than --max-replicas.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controller.config import ControllerConfig
from simulator import arguments
from simulator.bench import Bench, make_config
from simulator.cluster.scenario import Scenario
from simulator.errors import SimulationError
from simulator.run import Job, run_one
from simulator.simulation_summary import SimulationSummary
from workload import resample
from workload.azure import TraceError
from workload.frozen import FrozenModel

FIXED = ("static_fp16", "static_fp8")


@dataclass(frozen=True, slots=True)
class AttainmentTarget:
    """The share of requests that must be within an SLO."""

    slo: str  # tight or loose
    share: float

    def of(self, summary: SimulationSummary) -> float:
        """What a run attains."""
        return summary.tight_slo if self.slo == "tight" else summary.loose_slo


class CapacityResult(FrozenModel):
    """What one policy needs. ``None``: more than the most that was allowed, and the numbers are of that most."""

    policy: str
    replicas: int | None
    gpus: int | None
    attainment: float
    fp16_token_share: float | None
    attainment_with_one_less: float | None  # None: there is no less, or no answer
    tried: dict[int, float]  # attainment by replicas


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = arguments.make_parser("capacity", __doc__)
    arguments.add_load(parser)
    arguments.add_cluster(parser)
    group = parser.add_argument_group("question")
    group.add_argument("--slo", required=True, metavar="S", help="tight>=SHARE or loose>=SHARE, such as tight>=0.95")
    group.add_argument("--rate", type=float, metavar="RPS", help="mean requests per second (the trace's own)")
    group.add_argument(
        "--policy", action="append", metavar="NAME", help="adaptive one; may repeat (that of --config, or slo_auto)"
    )
    group.add_argument("--config", type=Path, metavar="YAML", help="the controller's section, or a file that holds it")
    group.add_argument("--gpus-per-replica", type=int, default=1, metavar="N", help="(%(default)s)")
    group.add_argument("--json", type=Path, metavar="FILE")
    # The question asks for the replicas, and says the load in requests per second.
    parser.set_defaults(max_replicas=64)
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(given)
    try:
        target, bench, scenario, configs = plan(args)
    except (SimulationError, TraceError) as error:
        parser.exit(2, f"capacity: {error}\n")
    try:
        load = bench.load
        print(
            f"{len(load.arrivals)} requests, {load.rate_rps:.1f}/s for {load.span_s:.0f} s; {args.slo}; one replica of "
            f"{bench.table.model} computes {bench.fp16_capacity_rps:.1f}/s in FP16, {bench.fp8_capacity_rps:.1f}/s in FP8"
        )
        print(f"{'policy':16s} {'replicas':>8s} {'GPUs':>5s} {target.slo:>6s} {'one less':>8s} {'FP16':>6s}")
        answers = []
        for config in configs:
            answers.append(smallest(bench, config, scenario, target, args.max_replicas, args.gpus_per_replica))
            print(line(answers[-1], args.max_replicas), flush=True)
        for sentence in sentences(answers, args.max_replicas, args.slo):
            print(sentence)
        if args.json is not None:
            plain = {
                "slo": args.slo,
                "requests": len(load.arrivals),
                "rate_rps": load.rate_rps,
                "max_replicas": args.max_replicas,
                "gpus_per_replica": args.gpus_per_replica,
                "answers": [answer.model_dump(mode="json") for answer in answers],
            }
            args.json.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    except (SimulationError, TraceError, OSError) as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 1
    return 3 if any(answer.replicas is None for answer in answers) else 0


def plan(args: argparse.Namespace) -> tuple[AttainmentTarget, Bench, Scenario, list[ControllerConfig]]:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    if args.load or args.replicas != 1:
        raise SimulationError("--load and --replicas: expected neither; say --rate, and the replicas are the answer")
    if args.generate is not None and args.rate is None:
        raise SimulationError("--generate: expected --rate, the mean requests per second")
    arguments.check_window(args)
    arguments.check_folders(args.json)
    for name in ("max_replicas", "gpus_per_replica"):
        if getattr(args, name) < 1:
            raise SimulationError(f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}")
    target = parse_slo(args.slo)
    if args.rate is not None and not 0 < args.rate < float("inf"):
        raise SimulationError(f"--rate: expected requests per second above 0, got {args.rate:g}")
    section = arguments.read_section(args.config)
    named = section["policy"].get("name") if isinstance(section.get("policy"), dict) else None
    adaptive = args.policy or [named or "slo_auto"]
    bench = arguments.read_bench(args, args.rate)
    configs = [make_config(section, policy, bench) for policy in dict.fromkeys([*FIXED, *adaptive])]
    # The number is fixed in each run, so the autoscaler may not add any.
    scenario = arguments.make_scenario(args).model_copy(update={"max_replicas": None})
    if args.rate is not None and args.trace is not None:
        bench = replace(bench, load=resample.resampled(bench.load, args.rate, scenario.seed, scenario.jitter_s))
    return target, bench, scenario, configs


def parse_slo(text: str) -> AttainmentTarget:
    """``tight>=0.95``.

    Raises:
        SimulationError: saying what was expected.
    """
    found = re.fullmatch(r"\s*(tight|loose)\s*>=\s*(0?\.\d+|1(?:\.0*)?)\s*", text)
    if found is None or not 0 < float(found[2]) <= 1:
        raise SimulationError(f"--slo: expected tight>=SHARE or loose>=SHARE, such as tight>=0.95, got {text!r}")
    return AttainmentTarget(found[1], float(found[2]))


def smallest(
    bench: Bench,
    config: ControllerConfig,
    scenario: Scenario,
    target: AttainmentTarget,
    most: int,
    gpus_per_replica: int = 1,
) -> CapacityResult:
    """Double until the SLO holds, then bisect."""
    runs: dict[int, SimulationSummary] = {}

    def holds(replicas: int) -> bool:
        if replicas not in runs:
            runs[replicas] = run_one(
                Job(bench, config, scenario.model_copy(update={"replicas": replicas}), None, None, None)
            )
        return target.of(runs[replicas]) >= target.share

    fails, count = 0, 1
    while not holds(count) and count < most:
        fails, count = count, min(2 * count, most)
    found = holds(count)
    while found and count - fails > 1:
        middle = (fails + count) // 2
        fails, count = (fails, middle) if holds(middle) else (middle, count)
    best = runs[count]
    return CapacityResult(
        policy=config.policy.name,
        replicas=count if found else None,
        gpus=count * gpus_per_replica if found else None,
        attainment=target.of(best),
        fp16_token_share=best.fp16_token_share,
        attainment_with_one_less=target.of(runs[fails]) if found and fails else None,
        tried={replicas: target.of(run) for replicas, run in sorted(runs.items())},
    )


def line(answer: CapacityResult, most: int) -> str:
    """One row of the table."""
    less, share = answer.attainment_with_one_less, answer.fp16_token_share
    return (
        f"{answer.policy:16s} {f'> {most}' if answer.replicas is None else answer.replicas:>8} "
        f"{'-' if answer.gpus is None else answer.gpus:>5} {100 * answer.attainment:6.2f} "
        f"{'-' if less is None else f'{100 * less:.2f}':>8s} {'?' if share is None else f'{100 * share:.1f}':>6s}"
    )


def sentences(answers: Sequence[CapacityResult], most: int, slo: str) -> list[str]:
    """What the table says, in words."""
    said = [
        f"{answer.policy}: {slo} does not hold with up to {most} replicas (at {most}: {100 * answer.attainment:.2f} %); "
        "raise --max-replicas, or ask for less: bursts may miss it at any size"
        for answer in answers
        if answer.replicas is None
    ]
    plain = next(answer for answer in answers if answer.policy == FIXED[0])
    for answer in answers:
        if answer.policy in FIXED or answer.gpus is None:
            continue
        share = (
            "" if answer.fp16_token_share is None else f", {100 * answer.fp16_token_share:.0f} % of its tokens in FP16"
        )
        without = f"more than {most} replicas" if plain.gpus is None else f"{plain.gpus}"
        said.append(f"NestedFP under {answer.policy}: {answer.gpus} GPUs{share}; FP16 alone: {without}")
    return said
