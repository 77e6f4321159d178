"""The versions that this project was tested with, in one place, and what becomes of others.

The plugin extends classes of vLLM that promise nothing to outsiders (table.py lists them), so another version may load and
then compute something else than it says. It is refused, unless ``NESTEDFP_ALLOW_UNTESTED=1`` says that somebody looked.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

TESTED = {"vllm": ("0.29.0", "0.32.0"), "torch": ("2.11.0", "2.13.0")}
TESTED_BY_SERVICE = {"vllm": ("0.29.0", "0.32.0"), "ray": ("2.60.0",)}
ALLOW_ENV = "NESTEDFP_ALLOW_UNTESTED"


def installed(package: str) -> str:
    """Return the version of a package without its local part: 2.13.0 of 2.13.0+cpu.

    Raises:
        ImportError: when it is not there.
    """
    for distribution in (package, f"{package}-cpu"):
        with suppress(PackageNotFoundError):
            return version(distribution).partition("+")[0]
    # Distributions of other names provide it, too.
    module, name = ("ray._version", "version") if package == "ray" else (f"{package}.version", "__version__")
    return str(getattr(importlib.import_module(module), name)).partition("+")[0]


def untested(tested: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return one sentence on the packages whose installed version is none of these; None when all are."""
    found = {package: installed(package) for package in tested}
    others = [
        f"{package} {found[package]} (tested: {', '.join(versions)})"
        for package, versions in tested.items()
        if found[package] not in versions
    ]
    return f"nestedfp was not tested with {' and '.join(others)}" if others else None


def check(tested: Mapping[str, tuple[str, ...]], differences: Callable[[], Sequence[str]] = list) -> str | None:
    """Refuse versions that were not tested.

    Args:
        differences: returns what of them differs from what is needed.

    Returns:
        A warning where they are allowed all the same and nothing differs, else None.

    Raises:
        ValueError: with the version, the tested ones, and what differs or how to allow it.
    """
    if (sentence := untested(tested)) is None:
        return None
    if found := differences():
        remedy = "install a tested version (python -m nestedfp.hooks lists what is needed)"
        raise ValueError(f"{sentence}, and {len(found)} of its hooks differ: {'; '.join(found)}; {remedy}")
    if os.environ.get(ALLOW_ENV) == "1":
        return f"{sentence}; {ALLOW_ENV}=1 allows it"
    raise ValueError(f"{sentence}; install a tested version, or set {ALLOW_ENV}=1 to try this one")
