"""Whole systems under one load, from docs/results/NAME/summary.json and predicted.json."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from docs.tables.marks import markdown, under
from experiments import predict, results
from experiments.config import Experiment, load
from experiments.results import Cell, Results, groups, mean

ROOT = Path(__file__).resolve().parents[2]
# Which runs are which column: by system, and of this service's runs by name.
PLAIN_FP16, FP16, DEFAULT, FP8, PLAIN_FP8 = (
    "`vllm serve` FP16",
    "FP16 alone",
    "default",
    "FP8 alone",
    "`vllm serve` FP8",
)
NAMES = {
    "vllm-fp16": PLAIN_FP16,
    "fp16": FP16,
    "default": DEFAULT,
    "deadlines": DEFAULT,
    "exact-first": DEFAULT,
    "fp8": FP8,
    "vllm-fp8": PLAIN_FP8,
}
KNOWN_EXACT = {PLAIN_FP16: 1.0, PLAIN_FP8: 0.0}  # vLLM's own answers disclose nothing: one precision, always
# The README shows these loads, each where all of its systems were measured.
README_LOADS = (("24b-one", 19.0), ("8b-one", 66.0), ("70b-tp4", 19.0))
SHAPES = {"mistral-24b": "Mistral Small 24B", "llama-8b": "Llama 3.1 8B", "llama-70b": "Llama 70B"}
OTHER_CARD = "-h200"  # results of another card, by the same configuration
LATENCIES = ("TTFT p50 / p90, ms", "TPOT p50 / p90, ms")
README_SYSTEMS = (PLAIN_FP16, PLAIN_FP8, FP8, DEFAULT)


def _measured(name: str) -> tuple[Experiment, Results]:
    return load(_config(name)), results.read(ROOT / "docs/results" / name)


def _config(name: str) -> Path:
    return ROOT / f"experiments/configs/{name.removesuffix(OTHER_CARD)}.yaml"


def _folders() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "docs/results").glob(f"*/{results.KEPT}"))


def _gpus(experiment: Experiment) -> str:
    ranks, replicas = experiment.engine.tensor_parallel_size, experiment.replicas
    if ranks > 1:
        return f"{replicas} replica{'s' * (replicas > 1)} over {ranks} GPUs{' each' * (replicas > 1)}"
    return f"{replicas} replica{'s' * (replicas > 1)}, one GPU{' each' * (replicas > 1)}"


def _by_system(measured: Results, rate_rps: float) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for (rate, policy), cells in groups(measured).items():
        if rate == rate_rps and policy in NAMES and not (policy == "deadlines" and DEFAULT in found):
            found[NAMES[policy]] = cells
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _latency(cells: Sequence[Cell]) -> list[str]:
    return [
        " / ".join(f"{mean(getattr(cell.ttft_ms, p) for cell in cells):.0f}" for p in ("p50", "p90")),
        " / ".join(f"{mean(getattr(cell.tpot_ms, p) for cell in cells):.1f}" for p in ("p50", "p90")),
    ]


def _exact(system: str, cells: Sequence[Cell]) -> str:
    shares = [cell.exact_answer_share for cell in cells if cell.exact_answer_share is not None]
    if not shares and system not in KNOWN_EXACT:
        return ""
    return _percent(mean(shares) if shares else KNOWN_EXACT[system])


def readme() -> str:
    """Return the README's table: every load of which all systems were measured."""
    rows = []
    for name, rate in README_LOADS:
        experiment, measured = _measured(name)
        found = _by_system(measured, rate)
        if not set(README_SYSTEMS) <= set(found):
            continue
        where = f"{SHAPES[experiment.shape or '']}, {_gpus(experiment)}, {rate:g} requests/s"
        for system in README_SYSTEMS:
            shown = {DEFAULT: "**this service, default**", FP8: "this service, FP8 alone"}.get(system, system)
            cells = found[system]
            rows.append(
                [where, shown, _percent(mean(c.tight_slo for c in cells)), _exact(system, cells), *_latency(cells)]
            )
            where = ""
    headings = ["", "", "in the SLO, %", "exact answers, %", *LATENCIES]
    return markdown(headings, rows)


def overview() -> str:
    """Return one line a load: requests in the SLO by system, and of the default its exact answers; empty: not measured."""
    rows = []
    for name in _folders():
        experiment, measured = _measured(name)
        for rate in sorted({cell.rate_rps for cell in measured.runs}):
            found = _by_system(measured, rate)
            shares = {system: _percent(mean(cell.tight_slo for cell in cells)) for system, cells in found.items()}
            default = found.get(DEFAULT)
            if default is not None:
                shares[DEFAULT] += (
                    f" / {_exact(DEFAULT, default)} / {_percent(mean(c.fp16_token_share or 0 for c in default))}"
                )
            columns = (PLAIN_FP16, FP16, DEFAULT, FP8, PLAIN_FP8)
            if not any(each in shares for each in columns):
                continue
            rows.append(
                [f"[{name}](#{name})", _gpus(experiment), f"{rate:g}", *(shares.get(each, "") for each in columns)]
            )
    headings = ["", "", "requests/s", PLAIN_FP16, FP16, "**default** / exact answers / FP16 tokens", FP8, PLAIN_FP8]
    return markdown(headings, rows)


def _machine(kept: str) -> str:
    """What nvidia-smi said of every card, without clocks, each kind of card once."""
    cards, _, others = kept.partition("; ")
    kinds = dict.fromkeys(
        ", ".join(part for part in card.split(", ") if "MHz" not in part) for card in cards.split(" | ")
    )
    return f"{' | '.join(kinds)}, {others}"


def serving(name: str) -> str:
    """Return all systems of an experiment, and the conditions; in brackets the range of the seeds or the interval of one."""
    experiment, measured = _measured(name)
    window, slo = measured.window, measured.slo
    seeds = sorted({cell.seed for cell in measured.runs})
    machine = "; then ".join(map(_machine, measured.machine.split(results.MACHINES)))
    conditions = (
        f"`{_config(name).relative_to(ROOT)}`: {SHAPES[experiment.shape or '']}, random weights, {_gpus(experiment)}; {machine}; "
        f"{window.start_s:g} to {window.start_s + window.duration_s:g} s of the trace, "
        f"{f'lengths times {window.length_scale:g}' if window.length_scale else 'full lengths'}; "
        f"seeds {', '.join(map(str, seeds))}; SLO {slo.ttft_ms:g} / {slo.tpot_ms:g} ms."
    )
    rows = []
    for (rate, policy), cells in groups(measured).items():
        low, high = results.interval(cells)
        system = NAMES.get(policy, policy)
        rows.append(
            [
                f"{rate:g}",
                policy,
                f"{_percent(mean(cell.tight_slo for cell in cells))} ({_percent(low)}-{_percent(high)})",
                _exact(system, cells),
                _mean_of(cell.fp16_token_share for cell in cells),
                *_latency(cells),
                str(sum(sum(cell.errors.values()) for cell in cells)),
            ]
        )
    headings = ["requests/s", "run", "in the SLO, %", "exact answers, %", "FP16 tokens, %", *LATENCIES, "failed"]
    return under(conditions, markdown(headings, rows))


def predicted(name: str, *policies: str) -> str:
    """Return what the simulator says of an experiment, or of some of its policies: means over its seeds."""
    found = predict.Predictions.model_validate_json((ROOT / "docs/results" / name / predict.KEPT).read_text())
    cells: dict[tuple[float, str], list[predict.Prediction]] = {}
    for each in found.runs:
        if not policies or each.policy in policies:
            cells.setdefault((each.rate_rps, each.policy), []).append(each)
    rows = [
        [
            f"{rate:g}",
            policy,
            _percent(mean(each.tight_slo for each in group)),
            _mean_of(each.exact_answer_share for each in group),
            _mean_of(each.fp16_token_share for each in group),
            f"{mean(each.ttft_ms.p90 for each in group):.0f}",
            f"{mean(each.tpot_ms.p90 for each in group):.1f}",
        ]
        for (rate, policy), group in sorted(cells.items(), key=lambda item: item[0][0])
    ]
    headings = [
        "requests/s",
        "policy",
        "in the SLO, %",
        "exact answers, %",
        "FP16 tokens, %",
        "TTFT p90, ms",
        "TPOT p90, ms",
    ]
    command = (
        f"`python -m experiments predict experiments/configs/{name}.yaml --trace AzureLLMInferenceTrace_conv.csv --table "
        f"simulator/engine/tables/{found.table}`; {found.front_ms:g} ms in every TTFT for what lies in front of the engine."
    )
    return under(command, markdown(headings, rows))


def _mean_of(shares: Iterable[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return _percent(mean(known)) if known else ""


def accuracy() -> str:
    """Return how far the simulator was off, by experiment and policy: the largest error of any rate and seed."""
    rows = []
    for name in _folders():
        _, measured = _measured(name)
        path = ROOT / "docs/results" / name / predict.KEPT
        if not path.exists():  # no table of step costs is of that card
            continue
        simulated = {
            (each.policy, each.rate_rps, each.seed): each
            for each in predict.Predictions.model_validate_json(path.read_text()).runs
        }
        for policy in dict.fromkeys(
            cell.policy for cell in measured.runs if NAMES.get(cell.policy) in (DEFAULT, FP16, FP8)
        ):
            pairs = [
                (cell, simulated[cell.policy, cell.rate_rps, cell.seed])
                for cell in measured.runs
                if cell.policy == policy and (cell.policy, cell.rate_rps, cell.seed) in simulated
            ]
            if pairs:
                rows.append([name, NAMES[policy], str(len(pairs)), *_errors(pairs)])
    return markdown(["", "policy", "runs", "in the SLO, points", "TTFT p50 / p90, %", "TPOT p50 / p90, %"], rows)


def _errors(pairs: Sequence[tuple[Cell, predict.Prediction]]) -> list[str]:
    def largest(latency: str, percentile: str) -> float:
        of = [
            (getattr(getattr(cell, latency), percentile), getattr(getattr(each, latency), percentile))
            for cell, each in pairs
        ]
        return max(abs(simulated / measured - 1) for measured, simulated in of) * 100

    points = max(abs(cell.tight_slo - each.tight_slo) for cell, each in pairs) * 100
    latencies = [" / ".join(f"{largest(name, p):.0f}" for p in ("p50", "p90")) for name in ("ttft_ms", "tpot_ms")]
    return [f"{points:.1f}", *latencies]


TABLES = {"readme": readme, "overview": overview, "serving": serving, "predicted": predicted, "accuracy": accuracy}
