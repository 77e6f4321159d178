"""Locust users that send streamed completions and note when every line of the answer arrived.

Imported only by ``loadtest.worker``: Locust patches the standard library for gevent when it is imported.

A request is one Locust user that fires once and stops, so Locust's user count is the number of requests in flight and
nothing waits for anything else. Users that loop (Locust's usual way, and the probe's) would be a closed loop: a slow
service would then be asked less often.

The HTTP client is geventhttpclient, which is what Locust's FastHttpUser wraps, used directly: FastHttpUser's streaming
reads blocks of 1024 bytes, which merges several chunks into one time stamp, whereas ``readline`` returns a line as
soon as it is there. httpx under gevent took twice the CPU per chunk (140 against 70 us on a 2-core machine), which is
taken from a server on the same cores. Every request has a connection of its own: no limit on concurrency, no stale
keep-alive connection, no retry.
"""

import itertools
import time
from collections.abc import Callable
from typing import IO, Any

import gevent  # type: ignore[import-untyped]
from geventhttpclient import HTTPClient
from locust import User, task
from locust.exception import StopUser

from loadtest.plan import Plan, PlannedRequest
from loadtest.prompts import completion_body, prompt_token_ids
from loadtest.records import RequestRecord, mean_tpot_ms
from loadtest.sse import parse_stream

PATH = "/v1/completions"
HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "Connection": "close"}
ERROR_BODY_BYTES = 300


class Sender:
    """Sends the requests of one plan and writes their records. Times are seconds after ``start_s`` (perf_counter)."""

    def __init__(self, plan: Plan, client: HTTPClient, records: IO[str]) -> None:
        self.plan = plan
        self.client = client
        self.records = records
        self.start_s = 0.0
        self.recorded: set[int] = set()
        self.sent = 0
        self.errors = 0
        self._closed_loop = itertools.count()

    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self.start_s

    def body(self, index: int) -> bytes:
        """Body of request ``index``."""
        plan, request = self.plan, self._request(index)
        prompt = prompt_token_ids(plan.seed, plan.run, index, request.prompt_tokens, plan.token_ids)
        return completion_body(plan.model, prompt, request.output_tokens)

    def next_closed_index(self) -> int:
        """The next request of the closed loop; the list starts again when it ends."""
        return next(self._closed_loop)

    def send(self, index: int, intended_s: float, body: bytes, report: Callable[..., Any]) -> None:
        """Send one request, read its stream, write its record and report it to Locust."""
        lines: list[tuple[float, bytes]] = []
        status: int | None = None
        error: str | None = None
        sent_s = self.now_s()
        self.sent += 1
        try:
            with (
                gevent.Timeout(self.plan.request_timeout_s),
                self.client.request("POST", PATH, body, headers=HEADERS) as response,
            ):
                status = response.status_code
                if status == 200:
                    while line := response.readline(b"\n"):
                        lines.append((self.now_s(), line))
                else:
                    error = f"HTTP {status}: {response.read()[:ERROR_BODY_BYTES].decode(errors='replace')}"
        except gevent.Timeout:
            error = f"no complete answer within {self.plan.request_timeout_s:g} s"
        except gevent.GreenletExit:
            error = "cut at the end of the run"
        except Exception as problem:  # whatever broke the connection is the result of this request, not of the run
            error = f"{type(problem).__name__}: {problem}"
        self._record(index, intended_s, sent_s, self.now_s(), status, error, lines, report)

    def record_unsent(self) -> None:
        """Record the planned requests that were never sent: they are failures, not missing data."""
        for index, request in enumerate(self.plan.requests):
            if index not in self.recorded:
                self._write(self._base(index, request.at_s, None), "not sent: the run ended before")

    def _record(
        self,
        index: int,
        intended_s: float,
        sent_s: float,
        end_s: float,
        status: int | None,
        error: str | None,
        lines: list[tuple[float, bytes]],
        report: Callable[..., Any],
    ) -> None:
        answer = parse_stream(lines)
        asked = self._request(index).output_tokens
        if error is None:
            error = answer.error
        if error is None and answer.output_tokens != asked:
            error = f"expected {asked} output tokens, got {answer.output_tokens}"
        chunk_ms = tuple(round((at_s - intended_s) * 1e3, 3) for at_s in answer.chunk_times)
        latency_ms = (end_s - intended_s) * 1e3
        measured = {
            "status": status,
            "output_tokens": answer.output_tokens,
            "ttft_ms": chunk_ms[0] if chunk_ms else None,
            "tpot_ms": mean_tpot_ms(chunk_ms, answer.output_tokens),
            "latency_ms": latency_ms,
            "chunk_ms": chunk_ms,
            "precision_tokens": answer.precision_tokens,
            "model": answer.model,
        }
        self._write(self._base(index, intended_s, sent_s) | measured, error)
        report(
            request_type="POST",
            name=PATH,
            response_time=latency_ms,
            response_length=sum(len(line) for _, line in lines),
            exception=error,
            context={},
        )

    def _base(self, index: int, intended_s: float, sent_s: float | None) -> dict[str, Any]:
        request = self._request(index)
        return {
            "policy": self.plan.policy,
            "index": index,
            "intended_s": intended_s,
            "sent_s": sent_s,
            "prompt_tokens": request.prompt_tokens,
            "max_tokens": request.output_tokens,
            "output_tokens": 0,
        }

    def _write(self, fields: dict[str, Any], error: str | None) -> None:
        record = RequestRecord.model_validate(fields | {"error": error})
        self.recorded.add(record.index)
        self.errors += error is not None
        self.records.write(record.model_dump_json() + "\n")
        self.records.flush()

    def _request(self, index: int) -> PlannedRequest:
        return self.plan.requests[index % len(self.plan.requests)]


class TraceUser(User):
    """Fires one request of the trace and stops."""

    def __init__(self, environment: Any, sender: Sender, index: int, body: bytes) -> None:
        super().__init__(environment)
        self.sender, self.index, self.body = sender, index, body

    @task
    def fire(self) -> None:
        """Send the request."""
        intended_s = self.sender.plan.requests[self.index].at_s
        self.sender.send(self.index, intended_s, self.body, self.environment.events.request.fire)
        raise StopUser


class ProbeUser(User):
    """Sends one request after another until the runner stops it: the closed loop of the calibration."""

    sender: Sender  # set on the class by the worker, as Locust constructs these users itself

    @task
    def fire(self) -> None:
        """Send the next request of the list."""
        index = self.sender.next_closed_index()
        body = self.sender.body(index)
        self.sender.send(index, self.sender.now_s(), body, self.environment.events.request.fire)
        if self.sender.now_s() >= self.sender.plan.duration_s:
            raise StopUser
