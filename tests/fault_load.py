"""Clients of a service that is being broken: streams that are read to their end, and requests of every kind one after the other."""

import collections
import http.client
import json
import threading
import time
from typing import Any

from fault_service import PORT
from live_service import MODEL


def begin(tokens: int = 900, prompt: str = "Long ago") -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of which nothing has been read but its head."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=90)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


class Streams:
    """Streams that are read in threads; how each of them ended."""

    def __init__(self, count: int, tokens: int = 700) -> None:
        self.tokens = tokens
        self.first = [threading.Event() for _ in range(count)]
        self.ends: list[str | None] = [None] * count
        self.ended_s: list[float] = [float("inf")] * count
        self.threads = [threading.Thread(target=self._read, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()
        assert all(event.wait(60) for event in self.first)

    def _read(self, number: int) -> None:
        connection, response = begin(self.tokens, f"{number} ravens")
        text = b""
        try:
            while part := response.read1(4096):
                text += part
                self.first[number].set()
            whole = text.rstrip().endswith(b"data: [DONE]")
            self.ends[number] = "error event" if b'data: {"error"' in text else "whole" if whole else "closed"
        except (OSError, http.client.HTTPException):
            self.ends[number] = "closed"
        finally:
            self.ended_s[number] = time.monotonic()
            self.first[number].set()
            connection.close()

    def join(self) -> "collections.Counter[str | None]":
        for thread in self.threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self.threads), "a stream hangs"
        return collections.Counter(self.ends)


class Asked:
    """One request of a load, and how it ended."""

    def __init__(self, number: int) -> None:
        self.id = f"load-{number}"
        self.status: int | None = None
        self.end: str | None = None
        body = {"model": MODEL, "max_tokens": 60, "ignore_eos": True}
        chat = {**body, "messages": [{"role": "user", "content": f"{number} owls"}]}
        plain = {**body, "prompt": f"{number} owls"}
        # The short way of plain streams, vLLM's own generators, and answers in one piece.
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {**plain, "stream": True}),
            ("/v1/completions", {**plain, "stream": True, "n": 2}),
            ("/v1/chat/completions", {**chat, "stream": True, "logprobs": True}),
            ("/v1/completions", plain),
            ("/v1/chat/completions", chat),
        ]
        self.path, self.body = kinds[number % 5]

    def ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=90)
        try:
            headers = {"Content-Type": "application/json", "X-Request-Id": self.id}
            connection.request("POST", self.path, json.dumps(self.body), headers)
            response = connection.getresponse()
            self.status, text = response.status, response.read()
            error = b'data: {"error"' in text
            whole = text.endswith(b"data: [DONE]\n\n") if self.body.get("stream") else self.status == 200
            self.end = "error event" if error else "whole" if whole else text.decode()
        except (OSError, http.client.HTTPException) as error:
            self.end = repr(error)
        finally:
            connection.close()

    @property
    def failed(self) -> bool:
        return self.status != 429 and self.end != "whole"


class Load:
    """So many clients that ask one request after the other, in threads."""

    def __init__(self, clients: int) -> None:
        self.asked: list[Asked] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                asked = Asked(len(self.asked))
                self.asked.append(asked)
            asked.ask()
            if asked.failed:
                self._ended.wait(0.5)

    def done(self) -> int:
        return sum(asked.end is not None for asked in self.asked)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
