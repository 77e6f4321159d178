"""The page ``/room`` of a replica: which class it is, and how many prompt tokens it can take; read by deploy/haproxy/route.lua."""

from collections.abc import Mapping
from typing import Any

from deploy.front.routes.pages import Shown


def room_page(directive: str, stats: Mapping[str, Any] | None, age_s: float) -> Shown:
    """Return the page: ``exact|fast TOKENS FULL_TOKENS TOKENS_PER_S LOAD_SHARE PINNED_SHARE AGE_S``, the age of the statistics.

    404 where the engine says nothing of its room, or has not followed the directive yet.
    """
    room = None if stats is None else stats["room"]
    if stats is None or room is None or stats["directive"] != directive:
        return Shown(404, "text/plain", b"this replica does not say now how many prompt tokens it can take\n")
    replica = "exact" if directive == "fp16" else "fast"
    tokens = f"{room['tokens']} {room['full_tokens']} {room['tokens_per_s']:.1f}"
    line = f"{replica} {tokens} {room['load_share']:.3f} {room['pinned_share']:.3f} {age_s:.3f}\n"
    return Shown(200, "text/plain", line.encode())
