"""Structured outputs: every grammar is tried in a process of its own before the engine compiles it.

The engine then gets only grammars of which it is known that they compile in time, and the front's own loop checks none. A grammar
that has been tried is remembered.
"""

import asyncio
import contextlib
import json
import logging
import multiprocessing
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.front.checks.grammar_process import FIELDS, OPTIONS, READY, Setting, run
from deploy.front.replies import OVERLOADED, Refused

log = logging.getLogger(__name__)

WALL_S = 60.0  # beside everything else that computes here
MOST_ASKED = 64  # grammars that are tried or wait for it, also of clients that have left
REMEMBERED_BYTES = 16 << 20
PAUSE_S = 10.0  # before another start, where the process ended before it was ready: that may come again at once


class Grammars:
    """Tries grammars of structured outputs in a process beside this one; ``start`` starts it, and it is replaced when it ends.

    Args:
        setting: of the engine.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: OrderedDict[str, str] = OrderedDict()  # what came of a grammar, the oldest first
        self._known_bytes = 0
        self._asked: dict[str, asyncio.Future[str]] = {}
        self._process: Any = None
        self._connection: Any = None  # to the process that runs or starts
        self._ready = False  # it has said so
        self._closed = False
        self._texts: dict[int, str] = {}
        self._numbers = 0
        self._sender = ThreadPoolExecutor(1, "grammars")

    def start(self) -> None:
        """Have the process start, unless it runs; within the loop, which does not wait for it. It is ready some seconds later."""
        if self._connection is None and not self._closed:
            # Not forked: this process has threads, and the engine's client.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            # Aside, as all that is sent: the process reads its setting, a tokenizer, only when it has imported much. What is asked
            # meanwhile comes after it.
            self._sender.submit(self._spawn, context, self._connection, theirs, asyncio.get_running_loop())

    async def check(self, params: Any, left_s: float | None = None) -> None:
        """Try the grammar of a request's ``SamplingParams``, if it has one, and leave there what the engine will compile.

        Args:
            left_s: of the time in which the engine must have begun the request; None: as long as it takes.

        Raises:
            Refused: 400 with the reason, or 503 when this machine was too busy to find out, or to do so in time.
        """
        wanted = getattr(params, "structured_outputs", None)
        if wanted is None or wanted.all_constraints_none():
            return
        text = json.dumps({name: getattr(wanted, name) for name in (*FIELDS, *OPTIONS)})
        answer = json.loads(await self._answer(text, left_s))
        if "busy" in answer:
            raise Refused(503, f"{answer['busy']}; try again", OVERLOADED)
        if "costly" in answer:
            message = f"the grammar may be right, but compiling it takes {answer['costly']}: simplify it"
            raise Refused(400, message, param="structured_outputs")
        if "refused" in answer:
            raise Refused(400, f"the grammar is wrong: {_one_line(answer['refused'])}", param="structured_outputs")
        for name, value in answer["params"].items():
            setattr(wanted, name, value)
        wanted._backend, wanted._backend_was_auto = answer["backend"], answer["automatic"]
        wanted.nestedfp_tried = True

    def close(self) -> None:
        """Tell the process to end. Without this it ends with the replica's."""
        self._closed = True
        self._sender.shutdown()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it has ended, and the thread that listens has not said so yet
                self._connection.send(None)

    async def _answer(self, text: str, left_s: float | None) -> str:
        if (known := self._known.get(text)) is not None:
            self._known.move_to_end(text)
            return known
        if text not in self._asked:
            if len(self._asked) >= MOST_ASKED:
                raise Refused(503, "too many grammars are being tried; try again", OVERLOADED)
            self._ask(text)
        try:
            # Not wait_for: that of Python 3.11 forgets that a client has left where the answer comes at the same moment, and the
            # engine would compute for nobody.
            async with asyncio.timeout(left_s):
                return await asyncio.shield(self._asked[text])  # it is tried to the end for whoever comes next
        except TimeoutError:
            late = "its grammar had been tried" if self._ready else "the process that tries grammars had started"
            raise Refused(503, f"the request's queue deadline was up before {late}; try again", OVERLOADED) from None

    def _ask(self, text: str) -> None:
        self.start()  # where it has ended, and another one was not to be started yet
        self._numbers += 1
        self._texts[self._numbers] = text
        self._asked[text] = asyncio.get_running_loop().create_future()
        # Where it has ended, ``_lost`` answers.
        self._sender.submit(self._connection.send, (self._numbers, text))

    def _spawn(self, context: Any, ours: Any, theirs: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process; on the sender's thread."""
        try:
            self._process = context.Process(target=run, args=(theirs,), name="grammars", daemon=True)
            self._process.start()
            theirs.close()
            # Not with the arguments: Python's pipe for them has its reading end open here too, and what it does not hold, as a
            # tokenizer, would be written for ever to a process that has ended as it started.
            ours.send(self._setting)
        except Exception as error:  # no memory, no process left: the end of the connection says so to whoever waits
            log.error("the process that tries grammars cannot be started: %r", error)
            ours.close()
        finally:
            theirs.close()
            threading.Thread(target=self._listen, args=(ours, loop), name="grammars", daemon=True).start()

    def _listen(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                number, answer = connection.recv()
                loop.call_soon_threadsafe(self._take, number, answer)
        except (EOFError, OSError):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and this process is about to
                loop.call_soon_threadsafe(self._lost)

    def _take(self, number: int, answer: str) -> None:
        if number == READY:
            self._ready = True
            return
        text = self._texts.pop(number)
        if (future := self._asked.pop(text, None)) is not None and not future.done():
            future.set_result(answer)
        if "busy" in json.loads(answer):
            return
        self._known[text] = answer
        self._known_bytes += len(text) + len(answer)
        while self._known_bytes > REMEMBERED_BYTES:
            oldest, its_answer = self._known.popitem(last=False)
            self._known_bytes -= len(oldest) + len(its_answer)

    def _lost(self) -> None:
        was_ready, self._ready, self._connection = self._ready, False, None
        self._texts.clear()
        answer = json.dumps({"busy": "the process that tries grammars has ended"})
        for future in self._asked.values():
            if not future.done():
                future.set_result(answer)
        self._asked.clear()
        if self._closed:
            return
        if was_ready:
            log.error("the process that tries grammars has ended; another one is started")
            self.start()
        else:
            log.error("the process that tries grammars has ended as it started; another one follows in %g s", PAUSE_S)
            asyncio.get_running_loop().call_later(PAUSE_S, self.start)


def skip_tried() -> None:
    """Have vLLM not check again, in the front's loop, what has been tried. Idempotent."""
    from vllm.sampling_params import SamplingParams

    original = SamplingParams._validate_structured_outputs
    if getattr(original, "_nestedfp", False):
        return

    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(self.structured_outputs, "nestedfp_tried", False):
            original(self, *args, **kwargs)

    checked._nestedfp = True  # type: ignore[attr-defined]
    SamplingParams._validate_structured_outputs = checked


def of_client(client: Any, cpu_s: float) -> Grammars:
    """Return the trial of grammars for an engine, of vLLM's ``AsyncLLM``."""
    config = client.vllm_config
    model = config.model_config
    skip_tried()
    return Grammars(
        Setting(
            tokenizer=client.get_tokenizer(),
            vocabulary=model.get_vocab_size(),
            options=config.structured_outputs_config,
            is_diffusion=model.is_diffusion,
            cpu_s=cpu_s,
            wall_s=WALL_S,
            model_type=model.hf_config.model_type,
        )
    )


def _one_line(text: str) -> str:
    """Return the first line of a reason, which may repeat parts of the client's grammar, but tells nothing of this machine."""
    line = next(
        iter(text.partition(" Pattern: ")[0].splitlines()), ""
    )  # vLLM repeats a pattern, or what it has made of it
    line = re.sub(r"\[[0-9:]+\] \S+:\d+: ", "", line)  # where in its own source xgrammar found that
    return "an internal detail" if re.search(r"site-packages|\.py\b|/usr/|/tmp/|0x[0-9a-f]{6}", line) else line[:300]
