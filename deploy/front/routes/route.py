"""A route that the engine computes for: whose requests it takes, what they ask for, and who answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from deploy.access.admission import Asked


@dataclass(frozen=True)
class Route(ABC):
    """One route; text.py and vectors.py say what its requests are.

    Attributes:
        model: vLLM's request class, or a union of such.
        serving: vLLM's serving object.
        method: of that.
    """

    model: Any
    serving: Any
    method: str = "__call__"

    @abstractmethod
    def check(self, request: Any) -> None:
        """Check a request's bounds.

        Raises:
            Refused: 400 with the field, its bound and what came.
        """

    @abstractmethod
    def asks(self, request: Any) -> Asked:
        """Return what a request asks of the engine."""

    def is_plain(self, request: Any) -> bool:
        """Whether the answer is a stream that this front writes by itself."""
        return False
