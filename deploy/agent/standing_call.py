"""The thread in which a replica waits for the controller's next directive.

A call that the controller made would run on the replica's event loop, after the tokens that this writes. The replica calls instead,
the controller answers when it has something to say, and else in time to renew the lease (``controller.live.delivery``). The answer
arrives here: the engine is told, and the acknowledgement goes with the next call, while the event loop is busy.
"""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

log = logging.getLogger(__name__)

PAUSE_S = 0.1  # after a failure: a new controller is there soon
JOIN_S = 5.0

Call = Callable[[dict[str, Any] | None, str | None], "Future[dict[str, Any] | None]"]


class StandingCall:
    """Waits until it is stopped.

    Args:
        call: (acknowledgement, token of the directive seen last) -> what ``ControllerActor.next_directive`` answers. May raise
            while no controller can be reached.
        take: puts a directive in force and returns the acknowledgement; called in the thread, may block.
        late_after_s: a controller that has not answered by then hangs, has been replaced, or its answer was lost.
        ended: called in the thread whenever a call has ended, well or not.
    """

    def __init__(
        self,
        call: Call,
        take: Callable[[dict[str, Any]], dict[str, Any]],
        late_after_s: float,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._call, self._take, self._late_after_s, self._ended = call, take, late_after_s, ended
        self._answers: queue.SimpleQueue[Future[dict[str, Any] | None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._reachable = True
        self._thread = threading.Thread(target=self._run, name="standing call", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended. One that is telling the engine ends with that."""
        self._stopping.set()
        self._answers.put(None)
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        ack: dict[str, Any] | None = None
        seen: str | None = None
        while not self._stopping.is_set():
            try:
                answer = self._answer(ack, seen)
                ack = None
                if not self._reachable:
                    log.info("directives come by standing calls again")
                self._reachable = True
            except Exception as error:
                self._lost(error)
                ack = None  # whoever answers next learns from the snapshots what is in force
                continue
            if answer is None:
                self._stopping.wait(PAUSE_S)
                continue
            seen = answer["token"]
            try:
                ack = self._take(answer["directive"])
            except Exception as error:
                log.warning("a directive could not be put in force: %r", error)
            self._ended()

    def _answer(self, ack: dict[str, Any] | None, seen: str | None) -> dict[str, Any] | None:
        asked = self._call(ack, seen)
        asked.add_done_callback(self._answers.put)
        while True:
            try:
                done = self._answers.get(timeout=self._late_after_s)
            except queue.Empty:
                raise TimeoutError(f"no answer to a standing call for {self._late_after_s:g} s") from None
            if done is None:  # stopped
                return None
            if done is asked:  # and not an earlier one, which nobody waits for any longer
                return asked.result()

    def _lost(self, error: Exception) -> None:
        if self._reachable:
            log.warning(
                "the controller does not answer the standing call (%r); the directive holds until its lease ends", error
            )
        self._reachable = False
        self._ended()
        self._stopping.wait(PAUSE_S)
