"""A steady load of requests, streamed and not, on several addresses of a service: how each of them ended."""

import collections
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from live_service import MODEL

SILENT_S = 60.0  # a request that brings nothing for so long hangs
AT_ONCE = 64
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
# Answers in one piece, the short way of plain streams, a stream that a change may well meet, and vLLM's own generators.
KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("/v1/completions", {"max_tokens": 32}),
    ("/v1/completions", {"max_tokens": 64, **STREAM}),
    ("/v1/completions", {"max_tokens": 400, **STREAM}),
    ("/v1/chat/completions", {"max_tokens": 64, "logprobs": True, **STREAM}),
    ("/v1/chat/completions", {"max_tokens": 32}),
)

WITHOUT_LOGPROBS = tuple(
    kind for kind in KINDS if "logprobs" not in kind[1]
)  # of engines that sleep, which have no logits


@dataclass(frozen=True)
class Answer:
    """How a request ended; seconds of ``time.monotonic``."""

    path: str
    began_s: float
    ended_s: float
    url: str
    end: str  # "ok", "failed ...", "hung", "lost ..."


class SteadyLoad:
    """Asks ``per_s`` times a second, in turn at every address, until the block ends; then waits for what is in flight.

    Every second round is asked on connections that are kept open, as clients' libraries do.
    """

    def __init__(self, urls: Sequence[str], per_s: float, kinds: Sequence[tuple[str, dict[str, Any]]] = KINDS) -> None:
        self.answers: list[Answer] = []
        self._urls, self._period_s, self._kinds = list(urls), 1 / per_s, kinds
        self._kept = {url: httpx.Client(base_url=url, timeout=SILENT_S, trust_env=False) for url in urls}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def __enter__(self) -> "SteadyLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._pool.shutdown(wait=True)
        for client in self._kept.values():
            client.close()

    def leave_out(self, url: str) -> None:
        """Send no more to an address, as a load balancer does that has heard of its end."""
        self._urls = [each for each in self._urls if each != url]

    def ends(self) -> dict[str, int]:
        return dict(collections.Counter(answer.end for answer in self.answers))

    def in_flight_at(self, at_s: float) -> list[Answer]:
        return [answer for answer in self.answers if answer.began_s < at_s < answer.ended_s]

    def _send(self) -> None:
        number, due_s = 0, time.monotonic()
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            self._pool.submit(self._ask, number)
            number, due_s = number + 1, due_s + self._period_s

    def _ask(self, number: int) -> None:
        path, asked = self._kinds[number % len(self._kinds)]
        turn = number // len(self._kinds)
        urls = self._urls
        url = urls[turn % len(urls)]
        kept = turn // len(urls) % 2 == 1
        text = f"{number} ravens"
        prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
        body = {"model": MODEL, "ignore_eos": True, **prompt, **asked}
        began_s = time.monotonic()
        try:
            if kept:
                end = _outcome(self._kept[url], path, body)
            else:
                with httpx.Client(base_url=url, timeout=SILENT_S, trust_env=False) as client:
                    end = _outcome(client, path, body)
        except httpx.ReadTimeout:
            end = "hung"
        except httpx.TransportError as error:
            end = f"failed {error!r}"
        self.answers.append(Answer(path, began_s, time.monotonic(), url, end))


def _outcome(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    with client.stream("POST", path, json=body) as response:
        text = "".join(response.iter_text())
    if response.status_code != 200:
        return f"failed {response.status_code}: {text[:200]}"
    events = [text]
    if body.get("stream"):
        events = [line[6:] for line in text.split("\n\n") if line.startswith("data: {")]
        if any("error" in json.loads(event) for event in events):
            return f"failed {text[-200:]}"
        if not text.endswith("data: [DONE]\n\n"):
            return f"lost {text[-200:]!r}"
    got = json.loads(events[-1])["usage"]["completion_tokens"]
    return "ok" if got == body["max_tokens"] else f"lost: {got} of {body['max_tokens']} tokens"
