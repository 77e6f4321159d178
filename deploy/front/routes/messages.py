"""Anthropic's ``/v1/messages``, of which vLLM makes a chat."""

from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of
from deploy.front.checks.requests import check_bounds
from deploy.front.replies import Refused
from deploy.front.routes.text import NamedEventsRoute

# The fields of that chat under their names here.
NAMES = {"stop": "stop_sequences", "response_format": "output_config"}


@dataclass(frozen=True)
class MessagesRoute(NamedEventsRoute):
    """The route; the usage stands in the event before the last."""

    last_events: tuple[str, ...] = ("message_delta",)
    method: str = "create_messages"

    def check(self, request: Any) -> None:
        """See ``Route.check``."""
        try:
            check_bounds(self.serving.to_chat_completion_request(request))
        except Refused as refusal:
            refusal.param = NAMES.get(refusal.param or "", refusal.param)
            raise

    def asks(self, request: Any) -> Asked:
        """See ``Route.asks``."""
        return asked_of(self.serving.to_chat_completion_request(request))

    def answer(self, result: Any) -> dict[str, Any]:
        """See ``Route.answer``."""
        found: dict[str, Any] = result.model_dump(mode="json", exclude_none=True)
        return found

    def error(self, refusal: Refused, request_id: str | None) -> bytes:
        """See ``Route.error``: Anthropic's clients look for a type beside it."""
        return msgspec.json.encode({"type": "error", **msgspec.json.decode(refusal.body(request_id))})
