"""Measurements of engines (CSV) -> observations that a step-time model can be fitted to. Pure but for opening files.

Four kinds of files, all with ``#`` comment lines above the header:

* whole runs, ``model,system,batch,input_tokens,output_tokens,tokens_per_s``: ``batch`` prompts are given at once and
  decoded together. Such a run is a known sequence of steps, and its duration the sum of theirs;
* single steps, ``model,system,prefill_tokens,decode_requests,kv_tokens,step_ms``;
* matrix products, ``system,N,K,M,us``: how the linear layers grow with the tokens in a step, which a few whole runs
  cannot tell apart from what a decoding request costs;
* what an engine measured at its start, ``model,tokens,fp16_ms,fp8_ms``: nothing is fitted to it.
"""

import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nestedfp.modes import Mode
from simulator.engine.cost_table import Source
from simulator.errors import SimulationError

RUN_COLUMNS = ("model", "system", "batch", "input_tokens", "output_tokens", "tokens_per_s")
STEP_COLUMNS = ("model", "system", "prefill_tokens", "decode_requests", "kv_tokens", "step_ms")
GEMM_COLUMNS = ("system", "N", "K", "M", "us")
START_COLUMNS = ("model", "tokens", "fp16_ms", "fp8_ms")
# Linear layers of a decoder block by model: (outputs N, inputs K); how many blocks.
LAYERS = {
    "llama-8b": (((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)), 32),
    "mistral-24b": (((6144, 5120), (5120, 4096), (65536, 5120), (5120, 32768)), 40),
}


@dataclass(frozen=True, slots=True)
class StepSize:
    """The size of one step."""

    tokens: int
    decodes: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Some steps, how often each, and how long they took together."""

    steps: tuple[tuple[StepSize, int], ...]
    seconds: float
    taken_in: int = 0  # requests that were taken in within that time, before the first step


@dataclass(frozen=True, slots=True)
class Csv:
    """A file of measurements."""

    source: Source
    rows: tuple[dict[str, str], ...]


def read_csv(path: Path, columns: tuple[str, ...]) -> Csv:
    """Read a file and check its columns.

    Raises:
        SimulationError: when it cannot be read or lacks a column.
    """
    try:
        data = path.read_bytes()
        lines = data.decode().splitlines()
    except OSError as error:
        raise SimulationError(f"{path}: cannot read the measurements ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SimulationError(f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from error
    header = tuple(line.lstrip("# ") for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if line.strip() and not line.startswith("#"))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise SimulationError(f"{path}: expected the columns {', '.join(columns)}; missing: {', '.join(missing)}")
    rows = tuple(reader)
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise SimulationError(f"{path}: row {number}: expected {len(reader.fieldnames or ())} columns")
    source = Source(file=path.name, sha256=hashlib.sha256(data).hexdigest(), header=header)
    return Csv(source, rows)


def run_observations(file: Csv, model: str, mode: Mode, budget_tokens: int) -> tuple[StepTiming, ...]:
    """The whole runs of a model in one precision."""
    observations = []
    for row in _of(file, model, mode):
        batch, tokens_in, tokens_out = (int(_number(file, row, name)) for name in RUN_COLUMNS[2:5])
        seconds = batch * tokens_out / _number(file, row, "tokens_per_s")
        steps = tuple((step, 1) for step in steps_of_run(batch, tokens_in, tokens_out, budget_tokens))
        observations.append(StepTiming(steps, seconds, batch))
    return tuple(observations)


def step_observations(file: Csv, model: str, mode: Mode) -> tuple[StepTiming, ...]:
    """The single steps of a model in one precision."""
    observations = []
    for row in _of(file, model, mode):
        prefill, decodes, kv_tokens = (int(_number(file, row, name)) for name in STEP_COLUMNS[2:5])
        step = StepSize(prefill + decodes, decodes, kv_tokens)
        observations.append(StepTiming(((step, 1),), _number(file, row, "step_ms") * 1e-3))
    return tuple(observations)


def gemm_observations(file: Csv, model: str, mode: Mode) -> tuple[StepTiming, ...]:
    """All linear layers of a model together, by the tokens in the step; only what they have measured in common."""
    if model not in LAYERS:
        raise SimulationError(f"{file.source.file}: the layers of {model} are not known; known: {', '.join(LAYERS)}")
    shapes, blocks = LAYERS[model]
    times_us: dict[int, dict[tuple[int, int], float]] = {}
    for row in file.rows:
        shape = int(_number(file, row, "N")), int(_number(file, row, "K"))
        if row["system"] == f"nestedfp_{mode}" and shape in shapes:
            times_us.setdefault(int(_number(file, row, "M")), {})[shape] = _number(file, row, "us")
    return tuple(
        StepTiming(((StepSize(tokens, 0, 0), 1),), blocks * sum(times.values()) * 1e-6)
        for tokens, times in sorted(times_us.items())
        if len(times) == len(shapes)
    )


def start_costs(file: Csv, model: str) -> tuple[tuple[int, float, float], ...]:
    """What a model's engine measured when it started: tokens, and a step's milliseconds in FP16 and FP8.

    Raises:
        SimulationError: when the file has none of the model.
    """
    rows = [row for row in file.rows if row["model"] == model]
    if not rows:
        raise SimulationError(f"{file.source.file}: expected rows of {model}, found none")
    numbers = [[_number(file, row, name) for name in START_COLUMNS[1:]] for row in rows]
    for tokens, *_ in numbers:
        if tokens != int(tokens):
            raise SimulationError(f"{file.source.file}: tokens: expected a whole number, got {tokens}")
    return tuple((int(tokens), fp16_ms, fp8_ms) for tokens, fp16_ms, fp8_ms in numbers)


def steps_of_run(batch: int, tokens_in: int, tokens_out: int, budget_tokens: int) -> Iterator[StepSize]:
    """The steps in which an empty engine computes ``batch`` equal requests given at once."""
    left = [tokens_in] * batch  # of each prompt
    decoding: list[int] = []  # entries of each request that decodes
    answers: list[int] = []  # tokens still to come of each
    while left or decoding:
        decodes, kv_tokens = len(decoding), sum(decoding)
        budget = budget_tokens - decodes
        prefill = done = 0
        for index, tokens in enumerate(left):
            count = min(tokens, budget - prefill)
            kv_tokens += tokens_in - tokens if count else 0
            prefill += count
            left[index] -= count
            done += left[index] == 0
            if prefill >= budget:
                break
        left = left[done:]
        yield StepSize(prefill + decodes, decodes, kv_tokens)
        decoding = [entries + 1 for entries in decoding]
        answers = [tokens - 1 for tokens in answers]
        while answers and answers[0] == 0:
            answers.pop(0)
            decoding.pop(0)
        decoding += [tokens_in] * done
        answers += [tokens_out - 1] * done
        while tokens_out == 1 and answers:
            answers.pop()
            decoding.pop()


def kv_cache_tokens(file: Csv, model: str) -> int | None:
    """What the file's header says about the KV cache beside NestedFP weights; None when it says nothing."""
    for line in file.source.header:
        if (found := re.search(rf"{re.escape(model)} nestedfp\b.*KV cache (\d+) tokens", line)) is not None:
            return int(found[1])
    return None


def _of(file: Csv, model: str, mode: Mode) -> Iterator[dict[str, str]]:
    return (row for row in file.rows if row["model"] == model and row["system"] == f"nestedfp_{mode}")


def _number(file: Csv, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError as error:
        raise SimulationError(f"{file.source.file}: {name}: expected a number, got {row[name]!r}") from error
    if not 0 <= value < float("inf"):
        raise SimulationError(f"{file.source.file}: {name}: expected a number of 0 or more, got {row[name]!r}")
    return value
