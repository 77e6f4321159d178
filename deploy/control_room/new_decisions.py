"""Follows a controller's decisions, also across its restarts."""

from collections.abc import Awaitable, Callable
from typing import Any

Ask = Callable[..., Awaitable[Any]]  # (method of the controller, *arguments) -> result; raises where there is none


class NewDecisions:
    """Each decision once.

    Args:
        ask: asks the controller.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._last: dict[str, Any] | None = None  # the newest that was given

    async def take(self) -> list[dict[str, Any]]:
        """Return the decisions since the last call that the controller still has in memory, oldest first.

        Raises whatever ``ask`` raises; nothing is lost then.
        """
        found: list[dict[str, Any]]
        if self._last is None:
            found = await self._ask("decisions", 0)
        else:
            # Asked for the last one again: where that is another one now, or gone, all of them are new. Another controller has
            # started, which counts from 1, or so many have come that this one has forgotten it.
            found = await self._ask("decisions", self._last["decision_id"] - 1)
            if found and _identity(found[0]) == _identity(self._last):
                del found[0]
            else:
                found = await self._ask("decisions", 0)
        self._last = found[-1] if found else self._last
        return found


def _identity(decision: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a decision from one of the same number that an earlier controller has made."""
    return decision["decision_id"], decision["now_s"], decision["wall_s"]
