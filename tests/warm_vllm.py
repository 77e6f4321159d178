"""Runs scripts that need vLLM, each in a fork of this process, which has imported it: an import takes longer than what they do.

Standard input, a line each: {"words": a script and its arguments, "stdin", "output": paths, "env": {...}, "limit_s"}; standard
output, a line each: the exit status, negative for a signal's number. Nothing computes here before the fork: no thread and no
pool of threads is lost in it.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import time
import traceback

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # what vLLM says goes elsewhere
    os.dup2(2, 1)
    import vllm.entrypoints.llm
    import vllm.v1.engine.core
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401

    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if not child:
            run(task)
        print(waited(child, task["limit_s"]), file=answers, flush=True)


def run(task: dict) -> None:  # type: ignore[type-arg]
    """Become the script; does not return."""
    os.setsid()
    code = 1
    try:
        given, output = os.open(task["stdin"], os.O_RDONLY), os.open(task["output"], os.O_WRONLY | os.O_CREAT, 0o600)
        for fd, number in ((given, 0), (output, 1), (output, 2)):
            os.dup2(fd, number)
        sys.stdin = os.fdopen(0, "r")
        os.environ.update(task["env"])
        sys.argv = task["words"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def waited(child: int, limit_s: float) -> int:
    """The exit status of a child, which is killed with its own children when its time is over."""
    deadline_s = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            os.killpg(child, signal.SIGKILL)
            deadline_s = float("inf")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
