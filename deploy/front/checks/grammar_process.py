"""The process beside a replica in which grammars of structured outputs are tried, before the engine gets them.

What a grammar costs is known only by compiling it, and a thread that compiles cannot be stopped. So this process, which has
one thread and has loaded the tokenizer, forks for every grammar: the child does what the engine would do, and the kernel ends it
when it has used up its time. Children have a low priority, so that engine and front go first.
"""

import contextlib
import json
import logging
import os
import resource
import selectors
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

READY = 0  # the number of what is sent when grammars can be tried; those of grammars begin with 1
MOST_AT_ONCE = 8
CHILD_MEMORY_BYTES = 4 << 30  # beyond what this process has: a few characters may ask for any amount
LOW_PRIORITY = 10
FIELDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
ERROR = "error: "  # before what is wrong, in Rust's regexes' account of it
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


@dataclass(frozen=True)
class Setting:
    """What grammars are compiled for: the engine's tokenizer, vocabulary and options for structured outputs."""

    tokenizer: Any
    vocabulary: int
    options: Any  # vLLM's StructuredOutputsConfig
    is_diffusion: bool
    cpu_s: float  # CPU time for one grammar
    wall_s: float  # and time on the clock
    model_type: str = ""  # of the model's configuration; xgrammar treats some models apart, from vLLM 0.32 on


@dataclass
class GrammarJob:
    """A grammar that waits or is tried: its number, its text, when it came, the child and when that began."""

    number: int
    text: str
    came_s: float
    pid: int = 0
    began_s: float = 0.0


def run(connection: Connection) -> None:
    """Try what comes as ``(number, JSON of the parameters)`` until None comes or the other end closes.

    The ``Setting`` comes before it. First goes ``(READY, "")``, when that can begin. Each gets ``(number, JSON)`` for an answer,
    which holds ``params`` as vLLM has normalised them, or ``refused`` with what is wrong, ``costly`` with what it takes, ``busy``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)  # what is wrong with a grammar is the client's business
    os.environ["VLLM_REGEX_COMPILATION_TIMEOUT_S"] = "0"  # by the clock, in a thread; here the kernel counts
    try:
        setting: Setting = connection.recv()
    except (EOFError, OSError):
        return
    manager = make_manager(setting)
    # What every child needs, once: the tokenizer's vocabulary as xgrammar wants it, and all modules.
    first = attempt({"regex": "a"}, setting, manager)
    assert manager.backend is not None or setting.options.backend not in ("auto", "xgrammar"), first
    with contextlib.suppress(OSError):  # nobody is there any more: what is read next says so
        connection.send((READY, ""))
    waiting: list[GrammarJob] = []
    running: dict[int, GrammarJob] = {}  # by the descriptor on which the child answers
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select(1.0 if running or waiting else None):
            if key.fileobj is connection:
                try:
                    asked = connection.recv()
                except (EOFError, OSError):
                    asked = None
                if asked is None:
                    for job in running.values():
                        _kill(job.pid)
                    return
                waiting.append(GrammarJob(*asked, came_s=time.monotonic()))
            else:
                selector.unregister(key.fd)
                job = running.pop(key.fd)
                connection.send((job.number, _collect(key.fd, job, setting)))
        for job in running.values():
            if time.monotonic() - job.began_s > setting.wall_s:
                _kill(job.pid)
        late = [job for job in waiting if time.monotonic() - job.came_s > setting.wall_s]
        for job in late:
            waiting.remove(job)
            connection.send((job.number, _busy(setting)))
        # Small ones first: they are the cheap ones, as a rule.
        waiting.sort(key=lambda job: len(job.text))
        while waiting and len(running) < MOST_AT_ONCE:
            job = waiting.pop(0)
            descriptor = _fork(job, setting, manager, connection)
            running[descriptor] = job
            selector.register(descriptor, selectors.EVENT_READ)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _fork(job: GrammarJob, setting: Setting, manager: Any, connection: Connection) -> int:
    """Start the child of a job; return the descriptor on which it answers."""
    reading, writing = os.pipe()
    job.began_s = time.monotonic()
    job.pid = os.fork()
    if job.pid:
        os.close(writing)
        return reading
    try:
        connection.close()
        os.nice(LOW_PRIORITY)
        # The kernel ends this process by SIGPROF, all threads' time counted, whatever it is in.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, setting.cpu_s)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + CHILD_MEMORY_BYTES, resource.RLIM_INFINITY))
        answer = json.dumps(attempt(json.loads(job.text), setting, manager)).encode()
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _collect(descriptor: int, job: GrammarJob, setting: Setting) -> str:
    """Return the answer of a child whose end has come or is near."""
    with open(descriptor, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(job.pid, 0)
    if answer:
        return answer.decode()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return json.dumps({"costly": f"more than {setting.cpu_s:g} s of processor time"})
    if time.monotonic() - job.began_s > setting.wall_s:
        return _busy(setting)
    return json.dumps({"costly": "too much memory, or is nested too deep"})


def _busy(setting: Setting) -> str:
    return json.dumps({"busy": f"the grammar was not compiled within {setting.wall_s:g} s: this machine is busy"})


def attempt(given: dict[str, Any], setting: Setting, manager: Any = None) -> dict[str, Any]:
    """Check and compile a grammar as the engine does, and see whether it allows a first token.

    Args:
        given: fields of vLLM's ``StructuredOutputsParams``.
        manager: of vLLM's xgrammar, made before; None: one is made.
    """
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.request import StructuredOutputRequest

    try:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**given))
        model = SimpleNamespace(is_diffusion=setting.is_diffusion)
        params._validate_structured_outputs(model, setting.options, setting.tokenizer)
        found = params.structured_outputs
        if manager is None or found._backend != "xgrammar":
            manager = make_manager(setting)
        wanted = StructuredOutputRequest.from_sampling_params(params)
        manager.grammar_init(
            SimpleNamespace(structured_output_request=wanted, sampling_params=params, request_id="trial")
        )
        grammar = wanted.grammar
        if isinstance(grammar, Exception):
            raise grammar
        mask = manager.backend.allocate_token_bitmask(1)
        grammar.fill_bitmask(mask, 0)
        if not bool(mask.any()):
            return {"refused": "it allows no text: no way through it has an end"}
    except MemoryError:
        return {"costly": "too much memory"}
    except Exception as error:
        return {"refused": reason(error)}
    return {
        "params": {name: getattr(found, name) for name in (*FIELDS, *OPTIONS)},
        "backend": found._backend,
        "automatic": found._backend_was_auto,
    }


def reason(error: Exception) -> str:
    """Return what is wrong with a grammar, beginning with a line that says it: Rust's regexes draw the place first."""
    lines = str(error).splitlines() or [type(error).__name__]
    below = next((line.removeprefix(ERROR) for line in lines[1:] if line.startswith(ERROR)), None)
    return "\n".join([f"{lines[0]} {below}" if below and lines[0].endswith(":") else lines[0], *lines[1:]])


def make_manager(setting: Setting) -> Any:
    """Return vLLM's manager of grammars without its threads."""
    from vllm.v1.structured_output import StructuredOutputManager

    manager = StructuredOutputManager.__new__(StructuredOutputManager)
    manager.backend, manager.tokenizer = None, setting.tokenizer
    manager._use_async_grammar_compilation = False
    manager.vllm_config = SimpleNamespace(
        structured_outputs_config=setting.options,
        speculative_config=None,
        model_config=SimpleNamespace(
            get_vocab_size=lambda: setting.vocabulary, hf_config=SimpleNamespace(model_type=setting.model_type)
        ),
    )
    return manager
