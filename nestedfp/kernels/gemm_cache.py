"""Timings of GEMM configs on disk, so that an engine that starts again need not time them.

One file for each card and layer shape, under ``$XDG_CACHE_HOME/nestedfp`` (``~/.cache/nestedfp``). A file is found by what the
times depend on: the GPU's name, multiprocessors, clock limits and power limit, the driver, and the kernels' own binary.
"""

import hashlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from nestedfp.kernels.gemm_tuning import PRECISIONS, Timing
from nestedfp.kernels.mixed_tuning import MixedChoice

FORMAT = 1
QUERY = "clocks.max.sm,clocks.max.mem,power.limit,driver_version"

logger = logging.getLogger("vllm.nestedfp")


@dataclass(frozen=True, slots=True)
class Card:
    """What timings depend on beside the shape."""

    gpu: str
    multiprocessors: int
    limits: str  # clocks, power limit and driver, as nvidia-smi says them
    kernels: str  # fingerprint of the compiled library


@cache
def kernels_fingerprint() -> str:
    """Fingerprint of the installed nestedfp_cuda_C.

    Raises:
        ImportError: when it is not installed.
    """
    spec = find_spec("nestedfp_cuda_C")
    if spec is None or spec.origin is None:
        raise ImportError("nestedfp_cuda_C is not installed; build with nvcc (CUDA 12.8 or newer) on the PATH")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]


def this_card() -> Card | None:
    """Describe the current device; None, with a warning, where nvidia-smi does not tell its limits."""
    properties = torch.cuda.get_device_properties()
    command = ["nvidia-smi", f"--id=GPU-{properties.uuid}", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("GEMM timings are not kept: nvidia-smi does not tell this card's limits (%s)", error)
        return None
    return Card(properties.name, properties.multi_processor_count, answer.stdout.strip(), kernels_fingerprint())


def folder() -> Path:
    """Where the files are."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nestedfp"


def path_of(card: Card, n: int, k: int, kind: str = "gemm") -> Path:
    """The file of one card and layer shape."""
    key = json.dumps([FORMAT, asdict(card), n, k], sort_keys=True)
    return folder() / f"{kind}-{n}x{k}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def to_text(
    card: Card | None, max_tokens: int, timings: Iterable[Timing], precisions: Iterable[int] = PRECISIONS
) -> str:
    """What a file holds."""
    header = {"format": FORMAT, "card": None if card is None else asdict(card), "max_tokens": max_tokens}
    return json.dumps({**header, "precisions": list(precisions), "timings": [timing.as_list() for timing in timings]})


def of_text(text: str) -> tuple[int, set[int], list[Timing]]:
    """Undo ``to_text``: return the most tokens and the precisions that were asked for, and the timings.

    Raises:
        ValueError: when the text is anything else.
    """
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"expected a JSON object with format {FORMAT}")
    max_tokens, timings = content.get("max_tokens"), content.get("timings")
    precisions = content.get("precisions", list(PRECISIONS))  # a file that does not say is of both
    if not isinstance(max_tokens, int) or not isinstance(timings, list) or not isinstance(precisions, list):
        raise ValueError("expected max_tokens, an integer, and precisions and timings, lists")
    return max_tokens, {p for p in precisions if isinstance(p, int)}, [Timing.of_list(values) for values in timings]


def load(card: Card, n: int, k: int, max_tokens: int, precisions: Iterable[int] = PRECISIONS) -> list[Timing] | None:
    """Return the kept timings of one shape.

    Returns:
        None if there are none for steps of up to ``max_tokens`` tokens in these precisions, or, with a warning, if the file
        cannot be read.
    """
    path = path_of(card, n, k)
    try:
        reached, timed, found = of_text(path.read_text())
        if any((timing.n, timing.k) != (n, k) for timing in found):
            raise ValueError(f"it holds timings of other shapes than N={n}, K={k}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("GEMM timings in %s cannot be used and are measured again: %s", path, error)
        return None
    return found if reached >= max_tokens and timed.issuperset(precisions) else None


def load_folder(path: Path) -> list[Timing]:
    """Return the timings of every file in a folder, in the order of names.

    Raises:
        ValueError: when there is none, or a file cannot be read.
    """
    files = sorted(path.glob("gemm-*.json"))
    if not files:
        raise ValueError(
            f"{path} holds no file gemm-*.json; name a copy of the folder that an engine keeps, {folder()}"
        )
    found: list[Timing] = []
    for file in files:
        try:
            found += of_text(file.read_text())[2]
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} cannot be used: {error}; copy {folder()} again") from error
    return found


def save(
    card: Card, n: int, k: int, max_tokens: int, timings: Iterable[Timing], precisions: Iterable[int] = PRECISIONS
) -> None:
    """Keep the timings of one shape; a folder that cannot be written costs a warning and the next start's time."""
    path = path_of(card, n, k)
    try:
        write(path, to_text(card, max_tokens, timings, precisions))
    except OSError as error:
        logger.warning("GEMM timings are not kept: %s cannot be written: %s", path, error)


def load_mixed(path: Path) -> list[MixedChoice] | None:
    """Return the kept choices of the mixed GEMM in a file of ``path_of`` with kind "mixed"; None: there are none."""
    try:
        return [MixedChoice.of_list(values) for values in json.loads(path.read_text())]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        logger.warning("choices in %s cannot be used and are measured again: %s", path, error)
        return None


def save_mixed(path: Path, choices: Iterable[MixedChoice]) -> None:
    """Keep the choices of one shape; a folder that cannot be written costs a warning and the next start's time."""
    try:
        write(path, json.dumps([choice.as_list() for choice in choices]))
    except OSError as error:
        logger.warning("choices are not kept: %s cannot be written: %s", path, error)


def write(path: Path, text: str) -> None:
    """Write a file at once, so that nobody reads half of it.

    Raises:
        OSError: when that is not possible.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(text)
    try:
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise
