"""Whole systems under one load, from docs/results/NAME/summary.json and predicted.json.

A line of a mark names the rows of a table: ``NAME RATE`` or ``NAME RATE,RATE: RUN RUN``; without runs all of that load.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from docs.tables.marks import MarkError, markdown, under
from experiments import results
from experiments.config import Experiment, load
from experiments.predict import KEPT as PREDICTED
from experiments.predict import Prediction, Predictions
from experiments.results import Cell, Results
from nestedfp.vllm_plugin.options import PluginOptions

ROOT = Path(__file__).resolve().parents[2]
# Which runs are which column: by system, and of this service's runs by name.
FP16, DEFAULT, FP8 = "FP16 alone", "**default**", "FP8 alone"
NAMES = {
    "vllm-fp16": "`vllm serve` FP16",
    "vllm-fp16-384": "`vllm serve` FP16, 384 tokens a step",
    "fp16": FP16,
    "default": DEFAULT,
    "deadlines": DEFAULT,  # where steps may hold both precisions
    "fp8": FP8,
    "vllm-fp8": "`vllm serve` FP8",
    "vllm-nestedfp": "`vllm serve`, nestedfp",
}
KNOWN_EXACT = {"vllm_fp16": 1.0, "vllm_fp8": 0.0}  # vLLM's own answers disclose nothing: one precision, always
SHAPES = {
    "mistral-24b": "Mistral Small 24B",
    "llama-8b": "Llama 3.1 8B",
    "llama-70b": "Llama 70B",
    "qwen3-30b-a3b": "Qwen3 30B-A3B",
}
OTHER_CARD = "-h200"  # results of another card, by the same configuration; what follows tells machines apart
Kept = TypeVar("Kept", Results, Predictions)
Groups = dict[tuple[float, str], list[Any]]  # load tests by rate and run
Columns = dict[str, Callable[[Sequence[Any]], str]]  # by heading, of the load tests of a row


def _experiment(name: str) -> Experiment:
    return load(ROOT / f"experiments/configs/{name.partition(OTHER_CARD)[0]}.yaml")


def _measured(name: str) -> Results:
    return results.read(ROOT / "docs/results" / name)


def _predicted(name: str) -> Predictions:
    return Predictions.model_validate_json((ROOT / "docs/results" / name / PREDICTED).read_text())


def _groups(cells: Sequence[Any]) -> Groups:
    """Return load tests, or predictions of them, by rate and run, in that order, seeds together."""
    found: Groups = {}
    order = list(dict.fromkeys(cell.policy for cell in cells))
    for cell in sorted(cells, key=lambda c: (c.rate_rps, order.index(c.policy), c.seed)):
        found.setdefault((cell.rate_rps, cell.policy), []).append(cell)
    return found


def _read(lines: Sequence[str], read: Callable[[str], Kept]) -> dict[str, Kept]:
    """Return the results that the lines name."""
    return {name: read(name) for line in lines if (name := line.partition(":")[0].strip().partition(" ")[0])}


def _chosen(lines: Sequence[str], found: Mapping[str, Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """Yield the first two fields of every row that the lines name, load and system, and its load tests, seeds together.

    Raises:
        MarkError: for a rate or a run that a folder has not.
    """
    last = None
    for line in lines:
        what, _, wanted = line.partition(":")
        name, _, rates = what.strip().partition(" ")
        there, experiment = _groups(found[name].runs), _experiment(name)
        for rate in map(float, rates.split(",")):
            known = [run for at, run in there if at == rate]
            for run in wanted.split() or known or [""]:
                if run not in known:
                    raise MarkError(
                        f"{line!r}: expected NAME RATE: RUN RUN, of {', '.join(f'{r:g}: {n}' for r, n in there)}"
                    )
                yield ["" if (name, rate) == last else f"{name}, {rate:g}/s", _label(run, experiment)], there[rate, run]
                last = name, rate


def _label(run: str, experiment: Experiment) -> str:
    """Return what a row is called; a run that is no default any more has its own name."""
    known, options = NAMES.get(run), PluginOptions(**experiment.engine.plugin)
    if known == DEFAULT and not options.mixed_steps:
        return "one precision a step"
    return known or f"`{run}`"


def services(*lines: str, brief: bool = False) -> str:
    """Return the measured rows that the lines name; in brackets, unless brief, the range of the seeds or the interval of one."""
    measured = _read(lines, _measured)
    chosen = [*_chosen(lines, measured)]
    columns: Columns = {"in the SLO, %": partial(_kept, brief=brief), "exact answers, %": _exact}
    if not brief:
        columns["FP16 tokens, %"] = lambda cells: _mean_of(cell.fp16_token_share for cell in cells)
    columns["TTFT p50/p90, ms"] = lambda cells: _latency(cells, "ttft_ms", 0, "p50", "p90")
    columns["TPOT p50/p90, ms"] = lambda cells: _latency(cells, "tpot_ms", 1, "p50", "p90")
    if any(_failed(cells) for _, cells in chosen):
        columns["failed"] = lambda cells: str(_failed(cells))
    if all(_worst(cells) for _, cells in chosen) and not brief:
        columns["in the SLO in the worst 10 s, %"] = lambda cells: _percent(min(_worst(cells)))
    if any(cell.cached_prompt_share for _, cells in chosen for cell in cells):
        columns["cached prompt tokens, %"] = lambda cells: _percent(
            mean(cell.cached_prompt_share or 0 for cell in cells)
        )
    facts = {name: [_cards(found.machine), *_load_facts(name, found.runs)] for name, found in measured.items()}
    return under(_conditions("run", facts), _rows(chosen, columns))


def predicted(*lines: str) -> str:
    """Return the simulated rows that the lines name: means over the seeds."""
    simulated = _read(lines, _predicted)
    columns: Columns = {
        "in the SLO, %": lambda group: _mean_of(each.slo_attainment for each in group),
        "exact answers, %": lambda group: _mean_of(each.exact_answer_share for each in group),
        "FP16 tokens, %": lambda group: _mean_of(each.fp16_token_share for each in group),
        "TTFT p90, ms": lambda group: _latency(group, "ttft_ms", 0, "p90"),
        "TPOT p90, ms": lambda group: _latency(group, "tpot_ms", 1, "p90"),
    }
    table = _rows([*_chosen(lines, simulated)], columns)
    facts = {
        name: [f"`{found.table}`, {found.front_ms:g} ms beside the engine", *_load_facts(name, found.runs)]
        for name, found in simulated.items()
    }
    return under(_conditions("predict", facts), table)


def _rows(chosen: Sequence[tuple[list[str], list[Any]]], columns: Columns) -> str:
    rows = [[*label, *(text(cells) for text in columns.values())] for label, cells in chosen]
    return markdown(["load", "system", *columns], rows)


def _load_facts(name: str, runs: Sequence[Cell | Prediction]) -> list[str]:
    """Return the conditions of a load, most general first."""
    experiment, seeds = _experiment(name), sorted({each.seed for each in runs})
    window, slo = experiment.load.window, experiment.slo
    return [
        f"lengths times {window.length_scale:g}" if window.length_scale else "full lengths",
        f"SLO {slo.ttft_ms:g} / {slo.tpot_ms:g} ms",
        f"{SHAPES[experiment.shape or '']}, {_gpus(experiment)}",
        f"{window.start_s:g}-{window.start_s + window.duration_s:g} s of the trace",
        f"seeds {', '.join(map(str, seeds))}",
    ]


def _conditions(command: str, facts: dict[str, list[str]]) -> str:
    """Return command and conditions of a table: once those that all of its loads share, then those of each."""
    common = [each for each in next(iter(facts.values())) if all(each in others for others in facts.values())]
    own = {name: [each for each in found if each not in common] for name, found in facts.items()}
    each = [f"{name}: {', '.join(said)}" for name, said in own.items() if said]
    name = "<NAME>" if len(facts) > 1 else next(iter(facts)).partition(OTHER_CARD)[0]
    said = (
        f"`python -m experiments {command} experiments/configs/{name}.yaml`; {'; '.join(['random weights', *common])}."
    )
    return f"{said} {'; '.join(each)}." if each else said


def _gpus(experiment: Experiment) -> str:
    ranks, replicas = experiment.engine.tensor_parallel_size, experiment.replicas
    gpus = f" over {ranks} GPUs" if ranks > 1 else ", one GPU"
    return f"{replicas} replica{'s' * (replicas > 1)}{gpus}{' each' * (replicas > 1)}"


def _cards(kept: str) -> str:
    """Return the kinds of GPU of a summary's machines."""
    machines = [machine.partition("; ")[0] for machine in kept.split(results.MACHINES)]
    cards = dict.fromkeys(card.split(",")[0] for machine in machines for card in machine.split(" | "))
    return " | ".join(card.removeprefix("NVIDIA ") for card in cards)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _mean_of(shares: Iterable[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return _percent(mean(known)) if known else ""


def _latency(cells: Sequence[Any], latency: str, digits: int, *percentiles: str) -> str:
    return "/".join(f"{mean(map(attrgetter(f'{latency}.{p}'), cells)):.{digits}f}" for p in percentiles)


def _kept(cells: Sequence[Cell], brief: bool) -> str:
    shares = [cell.slo_attainment for cell in cells]
    low, high = min(shares), max(shares)
    if len(cells) == 1:  # the bootstrap's interval
        low, high = cells[0].slo_attainment_low, cells[0].slo_attainment_high
    return _percent(mean(shares)) + (f" ({_percent(low)}-{_percent(high)})" if low < high and not brief else "")


def _exact(cells: Sequence[Cell]) -> str:
    return _mean_of(KNOWN_EXACT.get(cell.system, cell.exact_answer_share) for cell in cells)


def _failed(cells: Sequence[Cell]) -> int:
    return sum(sum(cell.errors.values()) for cell in cells)


def _worst(cells: Sequence[Cell]) -> list[float]:
    return [cell.slo_attainment_worst_10s for cell in cells if cell.slo_attainment_worst_10s is not None]


def accuracy(*lines: str) -> str:
    """Return the largest error of the simulator in any run, by line, ``GROUP: NAME NAME``, and precision."""
    rows = []
    for line in lines:
        group, _, names = line.partition(":")
        pairs: dict[str, list[tuple[Cell, Prediction]]] = {FP16: [], FP8: [], DEFAULT: []}
        for name in names.split():
            simulated = {(each.policy, each.rate_rps, each.seed): each for each in _predicted(name).runs}
            for cell in _measured(name).runs:
                prediction = simulated.get((cell.policy, cell.rate_rps, cell.seed))
                if prediction is not None and NAMES.get(cell.policy) in pairs:
                    pairs[NAMES[cell.policy]].append((cell, prediction))
        rows += [
            [group.strip(), system.strip("*"), str(len(found)), *_errors(found)]
            for system, found in pairs.items()
            if found
        ]
    points = ["in the SLO, points", "exact answers, points"]
    return markdown(["steps", "policy", "runs", *points, "TTFT p50/p90, %", "TPOT p50/p90, %"], rows)


def _errors(pairs: Sequence[tuple[Cell, Prediction]]) -> list[str]:
    def largest(latency: str, percentile: str) -> float:
        value = attrgetter(f"{latency}.{percentile}")
        return max(abs(value(each) / value(cell) - 1) for cell, each in pairs) * 100

    points = max(abs(cell.slo_attainment - each.slo_attainment) for cell, each in pairs) * 100
    exact = [
        abs(cell.exact_answer_share - each.exact_answer_share) * 100
        for cell, each in pairs
        if cell.exact_answer_share is not None and each.exact_answer_share is not None
    ]
    return [
        f"{points:.1f}",
        f"{max(exact):.1f}" if exact else "",
        *("/".join(f"{largest(name, p):.0f}" for p in ("p50", "p90")) for name in ("ttft_ms", "tpot_ms")),
    ]


TABLES = {"brief": partial(services, brief=True), "services": services, "predicted": predicted, "accuracy": accuracy}
