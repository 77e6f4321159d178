"""The tokenizer's thread, which all requests of a replica share: who has little to read does not wait for who has much.

vLLM's renderer has one thread for all that it does beside the event loop: chat templates, texts to tokens, tokens to texts.
A text of 8 MiB holds it for 20 s. Here two threads take turns by the size of the request's body: short bodies have one to
themselves, and in front of each thread the shortest goes first.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from deploy.front.context import CONTEXT

SHORT_BYTES = 1 << 15  # of a body, which is read in 0.05 s at most


class _Lane:
    """A pool whose threads take the smallest that waits.

    Args:
        submit: of the pool.
    """

    def __init__(self, submit: Callable[..., Any]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []

    def add(self, size: int, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (size, next(self._order), future, call))
        self._submit(self._run_smallest)
        return future

    def _run_smallest(self) -> None:
        with self._lock:
            _, _, future, call = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return  # its client has left
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def install(executor: Executor) -> None:
    """Have a renderer's executor take the requests of the front by their size, and note that they are read.

    Args:
        executor: vLLM's tokenizers may be used from several threads; each has a copy.
    """
    short = _Lane(executor.submit)
    long = _Lane(ThreadPoolExecutor(1, "long-texts").submit)

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = CONTEXT.get()
        size = 0 if context is None else context.body_bytes
        if context is not None:
            context.read_tokens = context.estimated_tokens
        return (short if size <= SHORT_BYTES else long).add(size, partial(function, *args, **kwargs))

    executor.submit = submit  # type: ignore[method-assign]
