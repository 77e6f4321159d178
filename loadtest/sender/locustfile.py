"""Locust users that send streamed completions and note when every line of the answer arrived.

Imported only by ``loadtest.sender.worker``: Locust patches the standard library for gevent when it is imported.

A request is one Locust user that fires once and stops, so Locust's user count is the number of requests in flight and
nothing waits for anything else. Users that loop (Locust's usual way, and the closed loop's) would be a closed loop: a slow
service would then be asked less often.

The HTTP client is ``loadtest.sender.http_stream``. Every request has a connection of its own: no limit on concurrency, no stale
keep-alive connection, no retry.
"""

import itertools
import time
from collections.abc import Callable
from typing import IO, Any

import gevent  # type: ignore[import-untyped]
from gevent.event import Event  # type: ignore[import-untyped]
from locust import User, task
from locust.exception import StopUser

from loadtest.sender.http_stream import Address, Answering, request_bytes, stream
from loadtest.sender.plan import CUT, TOO_LONG, WRONG_LENGTH, PlannedRequest, SendPlan
from loadtest.sender.prompts import completion_body, prompt_token_ids
from loadtest.sender.sse import lines_of, parse_stream
from workload.records import RequestRecord, mean_tpot_ms

PATH = "/v1/completions"
FAILED_PAUSE_S = 0.5


class Sender:
    """Sends the requests of one plan and writes their records. Times are seconds after ``start_s`` (perf_counter)."""

    def __init__(self, plan: SendPlan, address: Address, host: str, records: IO[str], key: str | None) -> None:
        self.plan = plan
        self.records = records
        self._address = address
        self._host = host
        self._key = key
        self.start_s = 0.0
        self.recorded: set[int] = set()
        self.ended = Event()  # of the closed loop: no more requests begin
        self.sent = 0
        self.errors = 0
        self.closed_loop = itertools.count()  # numbers of its requests; the list starts again when it ends

    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self.start_s

    def body(self, index: int) -> bytes:
        """Body of request ``index``."""
        plan, request = self.plan, self._request(index)
        prompt = prompt_token_ids(
            plan.seed, plan.run, index, request.prompt_tokens, request.blocks, request.block_tokens
        )
        return completion_body(plan.model, prompt, request.output_tokens, request.precision)

    def send(self, index: int, intended_s: float, body: bytes) -> bool:
        """Send one request, read its stream and write its record; False when it failed."""
        answer = Answering()
        error: str | None = None
        sent_s = self.now_s()
        self.sent += 1
        try:
            with gevent.Timeout(self.plan.request_timeout_s):
                request = request_bytes(self._host, PATH, body, self._key, self._request(index).session)
                stream(self._address, request, answer, self.now_s)
            if answer.status != 200:
                error = f"HTTP {answer.status}: {answer.error_text()}"
        except gevent.Timeout:
            error = f"{TOO_LONG} {self.plan.request_timeout_s:g} s"
        except gevent.GreenletExit:
            error = CUT
        except Exception as problem:  # whatever broke the connection is the result of this request, not of the run
            error = f"{type(problem).__name__}: {problem}"
        return self._record(index, intended_s, sent_s, answer, error)

    def send_until_ended(self) -> None:
        """Send the requests of the list one after another; after a failure pause, so that a service that refuses is not flooded."""
        while not self.ended.is_set():
            index = next(self.closed_loop)
            if not self.send(index, self.now_s(), self.body(index)):
                self.ended.wait(FAILED_PAUSE_S)  # the kill that cut a request has been taken note of, and spent

    def record_unsent(self) -> None:
        """Record the planned requests that were never sent: they are failures, not missing data."""
        for index, request in enumerate(self.plan.requests):
            if index not in self.recorded:
                self._write(self._base(index, request.at_s, None), "not sent: the run ended before")

    def _record(self, index: int, intended_s: float, sent_s: float, received: Answering, error: str | None) -> bool:
        latency_ms = (self.now_s() - intended_s) * 1e3
        streamed = received.status == 200
        answer = parse_stream(lines_of(received.pieces if streamed else ()))
        asked = self._request(index).output_tokens
        if error is None:
            error = answer.error
        if error is None and answer.output_tokens != asked:
            error = f"{WRONG_LENGTH}: {asked} asked for, got {answer.output_tokens}"
        chunk_ms = tuple(round((at_s - intended_s) * 1e3, 3) for at_s in answer.chunk_times)
        measured = {
            "status": received.status,
            "output_tokens": answer.output_tokens,
            "ttft_ms": chunk_ms[0] if chunk_ms else None,
            "tpot_ms": mean_tpot_ms(chunk_ms, answer.output_tokens),
            "latency_ms": latency_ms,
            "chunk_ms": chunk_ms,
            "precision_tokens": answer.precision_tokens,
        }
        self._write(self._base(index, intended_s, sent_s) | measured, error)
        return error is None

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
            "asked": request.precision,
        }

    def _write(self, fields: dict[str, Any], error: str | None) -> None:
        record = RequestRecord.model_validate(fields | {"error": error})
        self.recorded.add(record.index)
        self.errors += error is not None
        self.records.write(record.model_dump_json() + "\n")
        self.records.flush()

    def _request(self, index: int) -> PlannedRequest:
        return self.plan.requests[index % len(self.plan.requests)]


class SendingUser(User):
    """Does its work once and stops."""

    def __init__(self, environment: Any, work: Callable[[], object]) -> None:
        super().__init__(environment)
        self.work = work

    @task
    def fire(self) -> None:
        """Send what there is to send."""
        self.work()
        raise StopUser
