"""A plan that is sent while the caller does something else, for benchmarks and faults."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import Event, SendPlan
from workload.records import RequestRecord


class BackgroundLoad:
    """Use as a context manager: the sender starts with the block, and what is in flight when it is left drains.

    Args:
        plan: the requests.
        key: that the service wants with each.
    """

    def __init__(self, plan: SendPlan, key: str | None = None) -> None:
        self._ending, self._began = threading.Event(), threading.Event()
        self._start_s = 0.0
        self._pool = ThreadPoolExecutor(1)
        self._records = self._pool.submit(run_plan, plan, self._tick, key, self._ending)
        self._records.add_done_callback(lambda _: self._began.set())

    def __enter__(self) -> "BackgroundLoad":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._pool.shutdown()

    def _tick(self, elapsed_s: float, _: Event) -> None:
        if not self._began.is_set():
            self._start_s = time.monotonic() - elapsed_s
            self._began.set()

    def start_s(self) -> float:
        """Wait until the sender is ready, or has failed; return when its plan begins, of ``time.monotonic``."""
        self._began.wait()
        return self._start_s

    def end(self) -> tuple[RequestRecord, ...]:
        """Begin no more requests and wait for those in flight; return all, with times of ``time.monotonic``.

        Raises:
            DispatchError: the sender failed.
        """
        self._ending.set()
        return self.whole()

    def whole(self) -> tuple[RequestRecord, ...]:
        """Wait for the whole plan; return as ``end`` does."""
        records = self._records.result()
        return tuple(
            record.model_copy(
                update={
                    "intended_s": self._start_s + record.intended_s,
                    "sent_s": None if record.sent_s is None else self._start_s + record.sent_s,
                }
            )
            for record in records
        )
