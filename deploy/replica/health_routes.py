"""``/health`` and ``/ready`` of a replica.

``/health`` says whether the engine goes forward: it answers, and has made a step lately if there was work. ``/ready`` says
besides what was checked before the replica joined: a replica's HTTP server starts only after that, so that whoever gets
an answer here has a replica that passed.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from deploy.front.replies import Refused
from deploy.front.routes.pages import Shown

DEAD = "its engine has died"


class GivenUp(RuntimeError):
    """What was in the engine has been given up although the engine has not died; the message says why."""


class EngineHung(GivenUp):
    """The engine hangs; the message says for how long."""


async def show_health(replica: str, good: str, check: Callable[[], Awaitable[None]], more: Mapping[str, Any]) -> Shown:
    """Return the page of a replica that is sound, with ``good`` in words and what ``more`` there is to say.

    Raises:
        Refused: 503 with the reason why ``check``, which Serve asks as well, fails.
    """
    try:
        await check()
    except Exception as error:
        raise Refused(503, f"replica {replica} is not {good}: {error}") from None
    return Shown(200, "application/json", msgspec.json.encode({"status": good, "replica": replica, **more}))
