"""One line for every step of an engine: written as steps end, read back as sizes. Pure but for the file."""

import csv
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import IO

FOLDER_ENV = "STEP_LOG_FOLDER"  # tells a logging worker where


class StepLogError(ValueError):
    """A log that cannot be read; the message is for the user."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step.

    Attributes:
        began_s: of ``time.monotonic``.
        mode: "fp16" or "fp8".
        tokens: that it scheduled.
        requests: in it.
        long_requests: those of them with more than one token: prompts, or parts of them.
        gpu_ms: from the GPU's first work for it to the last, the waits for the host in between counted; None: no GPU.
        gpu_idle_before_ms: from the last work of the step before to the first of this, what samples tokens in between counted;
            None: no GPU, or the first step.
        kv_tokens: entries of earlier steps that its requests attend to.
    """

    began_s: float
    mode: str
    tokens: int
    requests: int
    long_requests: int
    kv_tokens: int
    gpu_ms: float | None = None
    gpu_idle_before_ms: float | None = None


COLUMNS = tuple(field.name for field in fields(LoggedStep))


class StepLog:
    """Writes steps, a line each as it comes: an engine may be killed at any time.

    Args:
        path: of the file, which must not be there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("x", buffering=1)
        self._file.write(",".join(COLUMNS) + "\n")

    def write(self, step: LoggedStep) -> None:
        """Append a step."""
        self._file.write(",".join("" if v is None else str(v) for v in astuple(step)) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_steps(path: Path) -> Iterator[LoggedStep]:
    """Yield the steps of one file. A last line without an end, of an engine that was killed, is left out.

    Raises:
        StepLogError: for other columns or a broken line, with its number.
    """
    text = path.read_text()
    lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
    rows = csv.reader(lines)
    header = tuple(next(rows, ()))
    if header != COLUMNS:
        raise StepLogError(f"{path}: expected the columns {','.join(COLUMNS)}; is it a log of steps?")
    for number, row in enumerate(rows, start=2):
        try:
            began_s, mode, tokens, requests, long_requests, kv_tokens, *of_gpu = row
            counts = (int(tokens), int(requests), int(long_requests))
            gpu_ms, idle_ms = (float(value) if value else None for value in of_gpu)
            yield LoggedStep(float(began_s), mode, *counts, int(kv_tokens), gpu_ms, idle_ms)
        except ValueError as error:
            raise StepLogError(f"{path}:{number}: expected a step, got {','.join(row)!r} ({error})") from None


def steps_of(folder: Path) -> list[LoggedStep]:
    """Read all logs of one system.

    Raises:
        StepLogError: for a folder without steps, or a broken line.
    """
    steps = [step for path in sorted(folder.glob("steps-*.csv")) for step in read_steps(path)]
    if not steps:
        raise StepLogError(f"{folder}: expected logs of steps, steps-*.csv with a step each line; found none")
    return steps


def log_folder() -> Path:
    """Return the folder of the logs.

    Raises:
        RuntimeError: when the environment names none.
    """
    if not (folder := os.environ.get(FOLDER_ENV)):
        raise RuntimeError(f"a logging worker needs {FOLDER_ENV}, the folder of its logs; it is not set")
    return Path(folder)
