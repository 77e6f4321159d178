"""The tokenizer's thread, which all requests of a replica share: who has little to read does not wait for who has much.

vLLM's renderer has one thread for all that it does beside the event loop: chat templates, texts to tokens, tokens to texts.
A text of 8 MiB holds it for 20 s. Here long bodies have another thread.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from deploy.front.context import CONTEXT

SHORT_BYTES = 1 << 13  # of a body, which is read in 0.02 s at most


def install(executor: Executor) -> None:
    """Have a renderer's executor leave long requests of the front to another, and note that they are read.

    vLLM's tokenizers may be used from several threads; each has a copy.
    """
    short, long = executor.submit, ThreadPoolExecutor(1, "long-texts").submit

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = CONTEXT.get()
        if context is None:
            return short(function, *args, **kwargs)
        context.read_tokens = context.estimated_tokens
        return (short if context.body_bytes <= SHORT_BYTES else long)(function, *args, **kwargs)

    executor.submit = submit  # type: ignore[method-assign]
