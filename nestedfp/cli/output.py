"""Progress, JSON and pictures of the sub-commands."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]


class UsageError(Exception):
    """A sub-command cannot do as it was told; one line that says why and what to do."""


def checkpoint_bytes(path: Path) -> int:
    """Return the size of the shards in a folder."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], object]]:
    """Show a bar on the standard error, on a terminal only; yield what is to be told of bytes done."""
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update


def write_json(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report, if its file was named."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@contextmanager
def figure(path: Path | None) -> Iterator[Any]:
    """Yield matplotlib's axes, which become the picture ``path``.

    Raises:
        UsageError: matplotlib is not installed, or does not know the ending.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install matplotlib") from error
    drawing = Figure(figsize=(8, 4.5), layout="constrained")
    if path is None or path.suffix[1:] not in drawing.canvas.get_supported_filetypes():
        raise UsageError(f"--plot: expected a file such as ranges.svg or ranges.png, got {path}")
    yield drawing.add_subplot()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "nestedfp"}
    ):  # letters as text, and the same file each time
        drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
