"""Fit the step-time model to measurements.

    python -m simulator fit --engine-csv benchmarks/results/h100-engine.csv --out TABLE.json

The model is linear in its coefficients but for the knee, so that for each knee a non-negative least-squares problem
(scipy) gives the rest; the knee with the smallest error is taken. Residuals are relative to the prediction (by
reweighting), so that a 6 ms step counts as much as a 200 ms one and noise does not pull the fit down. Single steps
(--steps-csv) are used instead of whole runs where both are given. A few whole runs cannot tell the cost of a token from
that of a decode or of a KV entry; so the first may be taken from the matrix products (--gemm-csv), and the last be given
(--kv-token-ns: bytes of an entry over the memory's bandwidth). A whole run also holds what it costs to take its requests
in, one after the other before the first step; that is fitted, told, and no part of the table's steps. --start-costs are taken
over as they are: what the simulated engine goes by until its steps teach it better.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[import-untyped]

from nestedfp.modes import Mode
from simulator.arguments import make_parser
from simulator.engine.cost_table import TABLE, EngineLimits, EngineTable, FitError, StepTimeModel, write_table
from simulator.errors import SimulationError
from simulator.fit import observations as obs

KNEES_TOKENS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
FIXED, TOKEN, OVER, DECODE, KV, REQUEST = range(6)  # the coefficients
UNITS = np.array([1e-3, 1e-6, 1e-6, 1e-6, 1e-9, 1e-3])  # ms, us, us, us, ns, ms
TIE_BREAK = 1e-3
REWEIGHTINGS = 4

Solution = npt.NDArray[np.float64]


def features(observation: obs.StepTiming, knee_tokens: int) -> list[float]:
    """What each coefficient is multiplied with, summed over the observation's steps."""
    sums = [0.0, 0.0, 0.0, 0.0, 0.0, float(observation.taken_in)]
    for step, count in observation.steps:
        values = (1, step.tokens, max(0, step.tokens - knee_tokens), step.decodes, step.kv_tokens)
        for index, value in enumerate(values):
            sums[index] += count * value
    return sums


def fit_cost(
    observations: Sequence[obs.StepTiming],
    layers: Sequence[obs.StepTiming] = (),
    kv_token_ns: float | None = None,
    request_ms: float | None = None,
) -> tuple[StepTimeModel, FitError]:
    """Fit one precision.

    Args:
        observations: what to fit to.
        layers: the linear layers alone; given, they say what tokens cost and where the knee lies.
        kv_token_ns: given, what a KV entry costs.
        request_ms: given, what a whole run spends outside its steps on each request.

    Raises:
        SimulationError: when there is nothing to fit to.
    """
    if not observations:
        raise SimulationError("expected measurements of nestedfp_fp16 and nestedfp_fp8 for the model, found none")
    given = {KV: kv_token_ns, REQUEST: request_ms}
    known = {index: value for index, value in given.items() if value is not None}
    knees: Sequence[int] = KNEES_TOKENS
    if layers:
        knee, solution, _ = _best_knee(layers, KNEES_TOKENS, {DECODE: 0.0, KV: 0.0, REQUEST: 0.0})
        knees = (knee,)
        known |= {TOKEN: solution[TOKEN], OVER: solution[OVER]}
    knee, solution, errors = _best_knee(observations, knees, known)
    fixed, token, over, decode, kv, request = (float(f"{value:.6g}") for value in solution)
    cost = StepTimeModel(
        fixed_ms=fixed, per_token_us=token, knee_tokens=knee,
        over_knee_us=over, per_decode_us=decode, per_kv_token_ns=kv,
    )  # fmt: skip
    return cost, FitError(
        observations=len(errors),
        median_relative=float(np.median(errors)),
        max_relative=float(errors.max()),
        per_request_ms=request,
    )


def _best_knee(
    observations: Sequence[obs.StepTiming], knees: Sequence[int], known: Mapping[int, float]
) -> tuple[int, Solution, Solution]:
    """The knee, the coefficients, ``known`` ones among them, and the relative errors of the best fit."""
    best: tuple[float, int, Solution, Solution] | None = None
    seconds = np.array([observation.seconds for observation in observations])
    for knee in knees:
        sizes = np.array([features(observation, knee) for observation in observations]) * UNITS
        scale = seconds
        for _ in range(REWEIGHTINGS):
            solution = _solve(sizes / scale[:, None], seconds / scale, known)
            if solution[FIXED] <= 0:
                break
            scale = sizes @ solution
        if solution[FIXED] <= 0:
            continue  # a step without fixed cost: the knee lies below all measurements
        errors = np.abs(sizes @ solution / seconds - 1)
        score = float(np.sqrt(np.mean((seconds / scale - 1) ** 2)))
        if best is None or score < best[0] - 1e-9:
            best = score, knee, solution, errors
    if best is None:
        raise SimulationError("the measurements give no fixed cost of a step; add small batches to them")
    return best[1:]


def _solve(matrix: Solution, target: Solution, known: Mapping[int, float]) -> Solution:
    """Non-negative least squares for the coefficients that are not known."""
    solution = np.zeros(len(UNITS))
    for index, value in known.items():
        solution[index] = value
    free = [index for index in range(len(UNITS)) if index not in known]
    # The pull towards zero decides only what the measurements leave open, in favour of the fixed cost.
    pull = TIE_BREAK * np.sqrt(np.sum(matrix**2, axis=0)) * (np.arange(len(UNITS)) != FIXED)
    rows = np.vstack([matrix[:, free], np.diag(pull)[free][:, free]])
    solution[free], _ = nnls(rows, np.concatenate([target - matrix @ solution, np.zeros(len(free))]))
    return solution


def fit_table(args: argparse.Namespace) -> EngineTable:
    """Read the files, fit both precisions, and put the table together."""
    runs = obs.read_csv(args.engine_csv, obs.RUN_COLUMNS) if args.engine_csv else None
    steps = obs.read_csv(args.steps_csv, obs.STEP_COLUMNS) if args.steps_csv else None
    gemms = obs.read_csv(args.gemm_csv, obs.GEMM_COLUMNS) if args.gemm_csv else None
    start = obs.read_csv(args.start_costs, obs.START_COLUMNS) if args.start_costs else None
    files = [file for file in (runs, steps, gemms, start) if file is not None]
    kv_tokens = args.kv_tokens
    for file in files:
        kv_tokens = kv_tokens or obs.kv_cache_tokens(file, args.model)
    if kv_tokens is None:
        raise SimulationError("the headers do not say how large the KV cache is; give --kv-tokens")
    limits = EngineLimits(
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        kv_tokens=kv_tokens,
        max_model_tokens=args.max_model_tokens,
        async_scheduling=not args.cpu,
    )
    fitted = {}
    for mode in Mode:
        if steps is not None:
            observed = obs.step_observations(steps, args.model, mode)
        else:
            assert runs is not None, "the parser demands one of the two"
            observed = obs.run_observations(runs, args.model, mode, limits.max_num_batched_tokens)
        layers = obs.gemm_observations(gemms, args.model, mode) if gemms else ()
        fitted[mode] = fit_cost(observed, layers, args.kv_token_ns, args.request_ms)
    header = files[0].source.header
    gpu = next((line for line in header if "NVIDIA" in line), args.gpu)
    return EngineTable(
        model=args.model,
        gpu=re.split("[,;]", gpu)[0],
        versions=gpu.partition(";")[2].strip() or "not stated",
        command="python -m simulator fit " + " ".join(args.command),
        sources=tuple(file.source for file in files),
        engine=limits,
        fp16=fitted[Mode.FP16][0],
        fp8=fitted[Mode.FP8][0],
        fit_fp16=fitted[Mode.FP16][1],
        fit_fp8=fitted[Mode.FP8][1],
        start_costs=None if start is None else obs.start_costs(start, args.model),
    )


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = make_parser("fit", __doc__)
    parser.add_argument(
        "--engine-csv", type=Path, metavar="CSV", help="whole runs, of python -m benchmarks.engine.engine_offline"
    )
    parser.add_argument("--steps-csv", type=Path, metavar="CSV", help="single steps")
    parser.add_argument(
        "--gemm-csv", type=Path, metavar="CSV", help="matrix products, of python -m benchmarks.kernels.gpu_gemm"
    )
    parser.add_argument(
        "--start-costs", type=Path, metavar="CSV", help="what the engine measured at its start (without: its steps)"
    )
    parser.add_argument("--kv-token-ns", type=float, metavar="NS", help="time to read one KV entry (fitted)")
    parser.add_argument(
        "--request-ms", type=float, metavar="MS", help="that a run spends outside its steps on each request (fitted)"
    )
    parser.add_argument("--model", default="llama-8b", help="(%(default)s)")
    parser.add_argument("--gpu", default="not stated", help="its name, if the header does not say it")
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="that the KV cache holds (from the header)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="N", help="(%(default)s)")
    parser.add_argument("--max-num-seqs", type=int, default=512, metavar="N", help="(%(default)s)")
    parser.add_argument("--max-model-tokens", type=int, default=16384, metavar="N", help="(%(default)s)")
    parser.add_argument("--cpu", action="store_true", help="the engine runs on a CPU: vLLM fills no step ahead there")
    parser.add_argument("--out", type=Path, default=TABLE, metavar="JSON", help="(the table that ships)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    args = parser.parse_args(given)
    args.command = [Path(part).name if part.startswith("/") else part for part in given]
    if args.engine_csv is None and args.steps_csv is None:
        parser.error("expected --engine-csv, --steps-csv or both, got neither")
    try:
        table = fit_table(args)
        write_table(args.out, table)
    except (SimulationError, OSError, ValueError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 1
    for mode, cost, fit in ((Mode.FP16, table.fp16, table.fit_fp16), (Mode.FP8, table.fp8, table.fit_fp8)):
        print(
            f"{mode}: step_ms = {cost.fixed_ms:.3f} + {cost.per_token_us * 1e-3:.5f} tokens "
            f"+ {cost.over_knee_us * 1e-3:.5f} max(0, tokens - {cost.knee_tokens}) "
            f"+ {cost.per_decode_us * 1e-3:.5f} decodes + {cost.per_kv_token_ns * 1e-6:.3g} kv_tokens; "
            f"{fit.observations} observations, relative error median {100 * fit.median_relative:.1f} %, "
            f"max {100 * fit.max_relative:.1f} %; "
            f"{fit.per_request_ms:.3f} ms outside the steps for each request"
        )
    print(f"table: {args.out}")
    return 0
