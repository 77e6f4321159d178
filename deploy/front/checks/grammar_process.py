"""The process beside a replica in which grammars of structured outputs are tried, before the engine gets them.

What a grammar costs is known only by compiling it, and a thread that compiles cannot be stopped: a choice of 100 texts of 5,000
characters has one of vLLM's few for more than 40 s. So this process, which has one thread and has loaded the tokenizer, forks for
every connection to its socket: the child does what the engine would do, and the kernel ends it when it has used up its time.
Children have a low priority, so that engine and front go first.
"""

import contextlib
import ctypes
import json
import logging
import os
import resource
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DOOR, SETTING = "grammars", "setting"  # in the folder that both share: the socket, and what is written before the start
CHILD_MEMORY_BYTES = 4 << 30  # beyond what this process has: a few characters may ask for any amount
CHILD_S = 60  # on the clock, beside everything else that computes here
PR_SET_PDEATHSIG = 1
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
    model_type: str = ""  # of the model's configuration; xgrammar treats some models apart, from vLLM 0.32 on


def main(folder: Path) -> None:
    """Try what comes on the socket, JSON of the parameters, until the standard input ends: the replica has.

    Each gets JSON for an answer, which holds ``params`` as vLLM has normalised them, or ``refused`` with what is wrong; nothing
    where it took too much.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)  # what is wrong with a grammar is the client's business
    os.environ["VLLM_REGEX_COMPILATION_TIMEOUT_S"] = "0"  # by the clock, in a thread; here the kernel counts
    setting: Setting = ForkingPickler.loads((folder / SETTING).read_bytes())
    manager = make_manager(setting)
    # What every child needs, once: the tokenizer's vocabulary as xgrammar wants it, and all modules.
    first = attempt({"regex": "a"}, setting, manager)
    assert manager.backend is not None or setting.options.backend not in ("auto", "xgrammar"), first
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets children that have ended
    with socket.socket(socket.AF_UNIX) as door:
        (folder / DOOR).unlink(missing_ok=True)  # of one before this
        door.bind(str(folder / DOOR))
        door.listen(128)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            line, _ = door.accept()
            with line:
                if os.fork() == 0:
                    try:
                        door.close()
                        _answer(line, setting, manager)
                    finally:
                        os._exit(0)
    shutil.rmtree(folder, ignore_errors=True)  # a replica that was killed leaves it


def _answer(line: socket.socket, setting: Setting, manager: Any) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with this process
    signal.alarm(CHILD_S)
    os.nice(LOW_PRIORITY)
    with line.makefile("rwb") as file:
        given = json.loads(file.read())
        # The kernel ends this process by SIGPROF, all threads' time counted, whatever it is in.
        signal.setitimer(signal.ITIMER_PROF, setting.cpu_s)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + CHILD_MEMORY_BYTES, resource.RLIM_INFINITY))
        with contextlib.suppress(MemoryError):
            file.write(json.dumps(attempt(given, setting, manager)).encode())


def attempt(given: dict[str, Any], setting: Setting, manager: Any = None) -> dict[str, Any]:
    """Check and compile a grammar, of the fields ``given``, as the engine does, and see whether it allows a first token."""
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
        raise
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
