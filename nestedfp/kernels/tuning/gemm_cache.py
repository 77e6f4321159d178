"""Timings of GEMM configs, and choices of the mixed GEMM, on disk, so that an engine that starts again need not measure them.

One file for each kind, card and layer shape, under ``$XDG_CACHE_HOME/nestedfp`` (``~/.cache/nestedfp``). It is found by what the
times depend on: the GPU's name, multiprocessors, clock limits and power limit, the driver, and the kernels' own binary.
"""

import hashlib
import json
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from nestedfp.kernels.gpu_kernels import library_path

FORMAT = 3
QUERY = "clocks.max.sm,clocks.max.mem,power.limit,driver_version"

logger = logging.getLogger("vllm.nestedfp")


class Card(NamedTuple):
    """What timings depend on beside the shape."""

    gpu: str
    multiprocessors: int
    limits: str  # clocks, power limit and driver, as nvidia-smi says them
    kernels: str  # fingerprint of the compiled library


def this_card() -> Card | None:
    """Describe the current device; None, with a warning, where nvidia-smi does not tell its limits."""
    properties = torch.cuda.get_device_properties()
    kernels = hashlib.sha256(Path(library_path()).read_bytes()).hexdigest()[:16]
    command = ["nvidia-smi", f"--id=GPU-{properties.uuid}", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("GEMM timings are not kept: nvidia-smi does not tell this card's limits (%s)", error)
        return None
    return Card(properties.name, properties.multi_processor_count, answer.stdout.strip(), kernels)


def folder() -> Path:
    """Where the files are."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nestedfp"


R = TypeVar("R")


def path_of(kind: str, card: Card, n: int, k: int) -> Path:
    """The file of one kind, "gemm" or "mixed", card and layer shape."""
    key = json.dumps([FORMAT, card, n, k])
    return folder() / f"{kind}-{n}x{k}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def load(kind: str, card: Card, n: int, k: int, reach: int, of_list: Callable[[Any], R]) -> list[R] | None:
    """Return what is kept of one shape.

    Args:
        reach: the most tokens to be measured.
        of_list: makes a row of what JSON has kept of it.

    Returns:
        None if there is nothing for steps of so many tokens, or, with a warning, if the file cannot be read.
    """
    path = path_of(kind, card, n, k)
    try:
        content = json.loads(path.read_text())
        return [of_list(values) for values in content["rows"]] if content["reach"] >= reach else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("times in %s cannot be used and are measured again: %r", path, error)
        return None


def save(kind: str, card: Card, n: int, k: int, reach: int, rows: Sequence[Any]) -> None:
    """Keep what was measured of one shape; a folder that cannot be written costs a warning and the next start's time."""
    path = path_of(kind, card, n, k)
    part = path.with_name(f"{path.name}.{os.getpid()}")  # so that nobody reads half of it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"card": card, "reach": reach, "rows": rows}))
        part.replace(path)
    except OSError as error:
        logger.warning("times are not kept: %s cannot be written: %s", path, error)
