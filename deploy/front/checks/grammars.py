"""Structured outputs: every grammar is tried in a process of its own before the engine compiles it.

The engine then gets only grammars of which it is known that they compile in time, and the front's own loop checks none. A grammar
that has been tried is remembered.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from deploy.config import REPOSITORY
from deploy.front.checks import grammar_process
from deploy.front.checks.grammar_process import CHILD_S, DOOR, FIELDS, OPTIONS, SETTING, Setting
from deploy.front.replies import OVERLOADED, Refused
from nestedfp.hooks.around import put

log = logging.getLogger(__name__)

MOST_ASKED = 64  # grammars that are tried or wait for it, also of clients that have left
MOST_AT_ONCE = 8  # that are tried
REMEMBERED_BYTES = 16 << 20
PAUSE_S = 10.0  # between two starts: where the process ends as it starts, that may come again at once
LOOK_EVERY_S = 0.1  # whether it is ready


class Grammars:
    """Tries grammars of structured outputs in a process beside this one, which ``start`` starts, and again when it has ended."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        # This user's alone; in the service's own folder, where there is one.
        self._folder = tempfile.TemporaryDirectory(prefix="nestedfp-", dir=os.environ.get("VLLM_RPC_BASE_PATH"))
        # In a file: a pipe does not hold a tokenizer, and the process reads it only when it has imported much.
        (Path(self._folder.name) / SETTING).write_bytes(ForkingPickler.dumps(setting))
        self._known: OrderedDict[str, str] = OrderedDict()  # what came of a grammar, the oldest first
        self._known_bytes = 0
        self._asked: dict[str, asyncio.Task[str]] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = -PAUSE_S  # of the monotonic clock
        self._ready = False

    def start(self) -> None:
        """Have the process start, unless it runs. It is ready some seconds later, and ends with this one."""
        if (self._process is not None and self._process.poll() is None) or time.monotonic() < self._started_s + PAUSE_S:
            return
        if self._process is not None:
            log.error("the process that tries grammars has ended; another one is started")
            self._process.communicate()
        self._started_s, self._ready = time.monotonic(), False
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", grammar_process.__name__, self._folder.name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})

    async def check(self, params: Any, left_s: float | None = None) -> None:
        """Try the grammar of a request's ``SamplingParams``, if it has one, and leave there what the engine will compile.

        Args:
            left_s: of the time in which the request must reach the engine; None: as long as it takes.

        Raises:
            Refused: 400 with the reason, or 503 when this machine was too busy to find out, or to do so in time.
        """
        wanted = getattr(params, "structured_outputs", None)
        if wanted is None or wanted.all_constraints_none():
            return
        text = json.dumps({name: getattr(wanted, name) for name in (*FIELDS, *OPTIONS)})
        answer = json.loads(await self._answer(text, left_s))
        if "refused" in answer:
            raise Refused(
                400, f"the grammar cannot be used: {_one_line(answer['refused'])}", param="structured_outputs"
            )
        for name, value in answer["params"].items():
            setattr(wanted, name, value)
        wanted._backend, wanted._backend_was_auto = answer["backend"], answer["automatic"]
        wanted.nestedfp_tried = True

    def close(self) -> None:
        """Have the process end. Without this it ends with the replica's."""
        if self._process is not None:
            self._process.communicate()
        self._folder.cleanup()

    async def _answer(self, text: str, left_s: float | None) -> str:
        if (known := self._known.get(text)) is not None:
            self._known.move_to_end(text)
            return known
        if (trial := self._asked.get(text)) is None:
            if len(self._asked) >= MOST_ASKED:
                raise Refused(503, "too many grammars are being tried; try again", OVERLOADED)
            trial = self._asked[text] = asyncio.create_task(self._try(text))
            trial.add_done_callback(lambda done: (self._asked.pop(text), done.cancelled() or done.exception()))
        # Not wait_for: that of Python 3.11 forgets that a client has left where the answer comes at the same moment, and the
        # engine would compute for nobody. It is tried to the end for whoever comes next.
        try:
            async with asyncio.timeout(left_s):
                return await asyncio.shield(trial)
        except TimeoutError:
            late = "its grammar had been tried" if self._ready else "the process that tries grammars had started"
            raise Refused(503, f"the request's queue deadline was up before {late}; try again", OVERLOADED) from None

    async def _try(self, text: str) -> str:
        answer: str | None = None
        try:
            async with asyncio.timeout(CHILD_S), self._places:
                while answer is None:
                    answer = await self._asked_once(text)
        except TimeoutError:
            message = f"the grammar was not compiled within {CHILD_S:g} s: this machine is busy; try again"
            raise Refused(503, message, OVERLOADED) from None
        if not answer:  # and not remembered: it may be another process that took the memory
            return json.dumps(
                {"refused": f"it takes more than {self._setting.cpu_s:g} s of processor time, or too much memory"}
            )
        self._known[text] = answer
        self._known_bytes += len(text) + len(answer)
        while self._known_bytes > REMEMBERED_BYTES:
            oldest, its_answer = self._known.popitem(last=False)
            self._known_bytes -= len(oldest) + len(its_answer)
        return answer

    async def _asked_once(self, text: str) -> str | None:
        """Return the answer, empty where the trial was ended; None: the process starts, or has ended before it took the grammar."""
        try:
            reader, writer = await asyncio.open_unix_connection(Path(self._folder.name) / DOOR)
        except OSError:
            self.start()
            await asyncio.sleep(LOOK_EVERY_S)
            return None
        self._ready = True
        try:
            writer.write(text.encode())
            writer.write_eof()
            return (await reader.read()).decode()
        except OSError:
            await asyncio.sleep(LOOK_EVERY_S)
            return None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def skip_tried() -> None:
    """Have vLLM not check again, in the front's loop, what has been tried. Idempotent."""
    from vllm.sampling_params import SamplingParams

    def checked(original: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(params.structured_outputs, "nestedfp_tried", False):
            original(params, *args, **kwargs)

    put(SamplingParams, "_validate_structured_outputs", checked)


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
            model_type=model.hf_config.model_type,
        )
    )


def _one_line(text: str) -> str:
    """Return the first line of a reason, which may repeat parts of the client's grammar, but tells nothing of this machine."""
    # Without the pattern, or what vLLM has made of it.
    line = next(iter(text.partition(" Pattern: ")[0].splitlines()), "")
    line = re.sub(r"\[[0-9:]+\] \S+:\d+: ", "", line)  # where in its own source xgrammar found that
    return "an internal detail" if re.search(r"site-packages|\.py\b|/usr/|/tmp/|0x[0-9a-f]{6}", line) else line[:300]
