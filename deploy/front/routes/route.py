"""A route that the engine computes for: whose requests it takes, what they ask for, and who answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from deploy.access.admission import Asked
from deploy.front.replies import Refused
from deploy.front.streams import GAP, error_events
from nestedfp.vllm_plugin.scheduling.accounting import total, usage_of
from nestedfp.vllm_plugin.serving.disclosure import NamedDiscloser, StreamDiscloser, Tokens


def tokens_of(counts: Any) -> Tokens | None:
    """Return the disclosure of the sequences that have ended; None: of none is it known."""
    return usage_of(total(counts.values())) if counts else None


@dataclass(frozen=True)
class Route(ABC):
    """One route; text.py says what its requests are.

    Attributes:
        model: vLLM's request class, or a union of such.
        serving: vLLM's serving object.
        method: of that.
    """

    model: Any
    serving: Any
    method: str = "__call__"

    computes: ClassVar[bool] = True  # the engine computes the answer

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

    def answer(self, result: Any) -> dict[str, Any]:
        """Return vLLM's answer in one piece as what becomes JSON."""
        found: dict[str, Any] = result.model_dump(mode="json")
        return found

    def events(self, result: Any) -> Any:
        """Return the server-sent events, as texts, of vLLM's generator of a streamed answer."""
        return result

    def discloser(self, request: Any, counts: Any, prompt_tokens: Callable[[], int]) -> Any:
        """Return what adds the disclosure to such an event, with a method ``event``.

        Args:
            counts: by sequence, as ``collected`` gives them.
            prompt_tokens: returns those of the request's prompts.
        """
        options = request.stream_options
        asked = bool(options and options.include_usage)
        return StreamDiscloser(lambda: tokens_of(counts), asked, prompt_tokens, lambda: bool(counts.whole))

    def error(self, refusal: Refused, request_id: str | None) -> bytes:
        """Return the JSON of an error."""
        return refusal.body(request_id)

    def last_words(self, body: bytes) -> bytes:
        """Return the event with which a broken stream ends."""
        return error_events(body)


@dataclass(frozen=True)
class NamedEventsRoute(Route):
    """A route whose events have names.

    Attributes:
        last_events: those that carry the usage.
    """

    last_events: tuple[str, ...] = ()

    def discloser(self, request: Any, counts: Any, prompt_tokens: Callable[[], int]) -> Any:
        """See ``Route.discloser``."""
        return NamedDiscloser(lambda: tokens_of(counts), self.last_events)

    def last_words(self, body: bytes) -> bytes:
        """See ``Route.last_words``."""
        return b"event: error\ndata: " + body + GAP
