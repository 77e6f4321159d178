"""Fit the step-time model to measured steps.

    python -m simulator fit --steps-csv steps.csv --model llama-8b --out TABLE.json

The model is linear in its coefficients but for the knee, so that for each knee a non-negative least-squares problem
(scipy) gives the rest; the knee with the smallest error is taken. Residuals are relative to the prediction (by
reweighting), so that a 6 ms step counts as much as a 200 ms one and noise does not pull the fit down. --start-costs are
taken over as they are: what the simulated engine goes by until its steps teach it better.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[import-untyped]

from nestedfp.modes import Mode
from simulator.engine.cost_table import TABLE, EngineLimits, EngineTable, FitError, StepTimeModel, write_table
from simulator.errors import SimulationError
from simulator.fit import observations as obs

KNEES_TOKENS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
FIXED = 0  # the first coefficient; then a token, one over the knee, a decode, a KV entry
UNITS = np.array([1e-3, 1e-6, 1e-6, 1e-6, 1e-9])  # ms, us, us, us, ns
TIE_BREAK = 1e-3
REWEIGHTINGS = 4

Solution = npt.NDArray[np.float64]


def fit_cost(steps: Sequence[tuple[int, int, int, float]]) -> tuple[StepTimeModel, FitError]:
    """Fit one precision.

    Raises:
        SimulationError: when there is nothing to fit to, or a step has no fixed cost.
    """
    if not steps:
        raise SimulationError("expected measurements of nestedfp_fp16 and nestedfp_fp8 for the model, found none")
    best: tuple[float, int, Solution, Solution] | None = None
    seconds = np.array([took_s for *_, took_s in steps])
    for knee in KNEES_TOKENS:
        rows = [(1, tokens, max(0, tokens - knee), decodes, kv_tokens) for tokens, decodes, kv_tokens, _ in steps]
        sizes = np.array(rows) * UNITS
        scale = seconds
        for _ in range(REWEIGHTINGS):
            solution = _solve(sizes / scale[:, None], seconds / scale)
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
    _, knee, solution, errors = best
    fixed, token, over, decode, kv = (float(f"{value:.6g}") for value in solution)
    cost = StepTimeModel(
        fixed_ms=fixed, per_token_us=token, knee_tokens=knee,
        over_knee_us=over, per_decode_us=decode, per_kv_token_ns=kv,
    )  # fmt: skip
    return cost, FitError(
        observations=len(errors), median_relative=float(np.median(errors)), max_relative=float(errors.max())
    )


def _solve(matrix: Solution, target: Solution) -> Solution:
    """Non-negative least squares."""
    # The pull towards zero decides only what the measurements leave open, in favour of the fixed cost.
    pull = TIE_BREAK * np.sqrt(np.sum(matrix**2, axis=0)) * (np.arange(len(UNITS)) != FIXED)
    solution, _ = nnls(np.vstack([matrix, np.diag(pull)]), np.concatenate([target, np.zeros(len(UNITS))]))
    return np.asarray(solution)


def fit_table(args: argparse.Namespace) -> EngineTable:
    """Read the files, fit both precisions, and put the table together."""
    steps = [obs.read_csv(path, obs.STEP_COLUMNS) for path in args.steps_csv]
    start = obs.read_csv(args.start_costs, obs.START_COLUMNS) if args.start_costs else None
    files = [file for file in (*steps, start) if file is not None]
    limits = EngineLimits(
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        kv_tokens=args.kv_tokens,
        max_model_tokens=args.max_model_tokens,
        mixed_steps=not args.one_precision,
    )
    (fp16, fit_fp16), (fp8, fit_fp8) = (
        fit_cost([step for file in steps for step in obs.step_observations(file, args.model, mode)])
        for mode in (Mode.FP16, Mode.FP8)
    )
    return EngineTable(
        model=args.model,
        gpu=args.gpu,
        ranks=args.ranks,
        command="python -m simulator fit " + " ".join(args.command),
        sources=tuple(file.source for file in files),
        engine=limits,
        fp16=fp16,
        fp8=fp8,
        fit_fp16=fit_fp16,
        fit_fp8=fit_fp8,
        start_costs=None if start is None else obs.start_costs(start, args.model),
    )


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps-csv", type=Path, nargs="+", metavar="CSV", required=True, help="single steps, of an engine each"
    )
    parser.add_argument(
        "--start-costs", type=Path, metavar="CSV", help="what the engine measured at its start (without: its steps)"
    )
    parser.add_argument("--model", default="llama-8b", help="(%(default)s)")
    parser.add_argument("--gpu", default="not stated", help="its name")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="tensor-parallel ones (%(default)s)")
    parser.add_argument("--kv-tokens", type=int, metavar="N", required=True, help="that the KV cache holds")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="N", help="(%(default)s)")
    parser.add_argument("--max-num-seqs", type=int, default=512, metavar="N", help="(%(default)s)")
    parser.add_argument("--max-model-tokens", type=int, default=16384, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--one-precision", action="store_true", help="of steps: with nested experts, drafts or latent attention"
    )
    parser.add_argument("--out", type=Path, default=TABLE, metavar="JSON", help="(the table that ships)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    args = parser.parse_args(given)
    args.command = [Path(part).name if part.startswith("/") else part for part in given]
    try:
        table = fit_table(args)
        write_table(args.out, table)
    except (SimulationError, OSError, ValueError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 1
    for mode, fit in ((Mode.FP16, table.fit_fp16), (Mode.FP8, table.fit_fp8)):
        print(
            f"{mode}: {fit.observations} observations, relative error median {100 * fit.median_relative:.1f} %, "
            f"max {100 * fit.max_relative:.1f} %"
        )
    print(f"table: {args.out}")
    return 0
