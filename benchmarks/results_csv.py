"""Result files: comment lines, then CSV. Measuring again replaces rows with the same key and keeps all others.

So a long benchmark can be run in pieces that end up in one file. A row that a later run replaced keeps no comment.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def heading(argv: Sequence[str] | None = None) -> list[str]:
    """Return the comment lines of a run: date and command, then GPU, clocks and versions."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "?")
    arguments = " ".join(sys.argv[1:] if argv is None else argv)
    return [f"{datetime.now(UTC):%Y-%m-%d} python -m {module} {arguments}".rstrip(), gpu_description()]


def gpu_description() -> str:
    """Return GPUs, clocks and versions."""
    import torch

    try:
        gpu = " | ".join(nvidia_smi("name,clocks.sm,clocks.mem,driver_version"))
    except FileNotFoundError:
        gpu = "no GPU"
    return f"{gpu}; torch {torch.__version__}, CUDA {torch.version.cuda}"


def nvidia_smi(fields: str) -> list[str]:
    """Return these fields of each GPU that this process may use, a line a GPU."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()


def read(path: Path) -> tuple[list[str], list[str], list[list[str]]]:
    """Return comments, columns and rows of a result file."""
    lines = path.read_text().splitlines()
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    table = list(csv.reader(line for line in lines if line and not line.startswith("#")))
    return comments, table[0], table[1:]


def write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]], comments: Sequence[str]) -> None:
    """Write a result file of one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.writelines(f"# {comment}\n" for comment in comments)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def merge(
    path: Path,
    columns: Sequence[str],
    keys: Sequence[str],
    rows: Sequence[Sequence[Any]],
    comments: Sequence[str],
) -> None:
    """Write rows into a result file, replacing those whose fields in the columns ``keys`` are equal.

    Raises:
        ValueError: when the file holds other columns.
    """
    places = [columns.index(key) for key in keys]
    kept: dict[tuple[str, ...], list[str]] = {}
    notes: list[str] = []
    if path.exists():
        notes, found, old = read(path)
        if found != list(columns):
            raise ValueError(f"{path}: expected the columns {list(columns)}, found {found}; move the file away")
        kept = {tuple(row[i] for i in places): row for row in old}
    for row in rows:
        kept[tuple(str(row[i]) for i in places)] = list(map(str, row))
    write(path, columns, list(kept.values()), list(dict.fromkeys([*notes, *comments])))
