"""Measurements of engines (CSV) -> steps that a step-time model can be fitted to. Pure but for opening files.

Two kinds of files, with ``#`` comment lines above the header:

* single steps, ``model,system,prefill_tokens,decode_requests,kv_tokens,step_ms``;
* what an engine measured at its start, ``model,tokens,fp16_ms,fp8_ms``: nothing is fitted to it.
"""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

from nestedfp.modes import Mode
from simulator.engine.cost_table import Source
from simulator.errors import SimulationError

STEP_COLUMNS = ("model", "system", "prefill_tokens", "decode_requests", "kv_tokens", "step_ms")
START_COLUMNS = ("model", "tokens", "fp16_ms", "fp8_ms")


@dataclass(frozen=True, slots=True)
class Csv:
    """A file of measurements."""

    source: Source
    rows: tuple[dict[str, str], ...]


def read_csv(path: Path, columns: tuple[str, ...]) -> Csv:
    """Read a file and check its columns. A last line that has no end is left out: its writer was killed.

    Raises:
        SimulationError: when it cannot be read or lacks a column.
    """
    try:
        data = path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].decode().splitlines()
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


def step_observations(file: Csv, model: str, mode: Mode) -> list[tuple[int, int, int, float]]:
    """The single steps of a model in one precision: tokens, decodes, KV entries, seconds."""
    observations = []
    for row in file.rows:
        if (row["model"], row["system"]) != (model, f"nestedfp_{mode}"):
            continue
        prefill, decodes, kv_tokens = (int(_number(file, row, name)) for name in STEP_COLUMNS[2:5])
        observations.append((prefill + decodes, decodes, kv_tokens, _number(file, row, "step_ms") * 1e-3))
    return observations


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


def _number(file: Csv, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError as error:
        raise SimulationError(f"{file.source.file}: {name}: expected a number, got {row[name]!r}") from error
    if not 0 <= value < float("inf"):
        raise SimulationError(f"{file.source.file}: {name}: expected a number of 0 or more, got {row[name]!r}")
    return value
