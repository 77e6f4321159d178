"""Progress and JSON of the sub-commands."""

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
