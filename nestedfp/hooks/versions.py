"""The versions that this project was tested with, in one place, and what becomes of others.

The plugin extends classes of vLLM that promise nothing to outsiders (table.py lists them), so another version may load and
then compute something else than it says. It is refused, unless ``NESTEDFP_ALLOW_UNTESTED=1`` says that somebody looked.
"""

import importlib
import os
from collections.abc import Iterable

TESTED = {"vllm": ("0.29.0", "0.32.0"), "torch": ("2.11.0", "2.13.0"), "ray": ("2.60.0",)}
ALLOW_ENV = "NESTEDFP_ALLOW_UNTESTED"


def installed(package: str) -> str:
    """Return the version of a package without its local part: 2.13.0 of 2.13.0+cpu.

    Raises:
        ImportError: when it is not there.
    """
    # Not by the distribution: others of other names provide vLLM, too.
    module, name = ("ray._version", "version") if package == "ray" else (f"{package}.version", "__version__")
    return str(getattr(importlib.import_module(module), name)).partition("+")[0]


def untested(packages: Iterable[str]) -> str | None:
    """Return one sentence on the packages whose installed version was not tested; None when all were."""
    found = {package: installed(package) for package in packages}
    others = [
        f"{package} {version} (tested: {', '.join(TESTED[package])})"
        for package, version in found.items()
        if version not in TESTED[package]
    ]
    return f"nestedfp was not tested with {' and '.join(others)}" if others else None


def allowed() -> bool:
    """Whether somebody says that versions that were not tested may run."""
    return os.environ.get(ALLOW_ENV) == "1"


def check(packages: Iterable[str]) -> str | None:
    """Refuse versions that were not tested.

    Returns:
        A warning where they are allowed all the same, else None.

    Raises:
        ValueError: with the version, the tested ones and how to allow it.
    """
    sentence = untested(packages)
    if sentence is None or allowed():
        return sentence
    raise ValueError(f"{sentence}; install a tested version, or set {ALLOW_ENV}=1 to try this one")
