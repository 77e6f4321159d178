"""Starts the project's own scripts as processes, fed with JSON and answering with a line of JSON."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# vLLM asks a GPU when it is imported, and a process that has must not fork.
CAN_FORK = not Path("/dev/nvidia0").exists()


def run_json(
    script: str, payload: Any, timeout_s: float = 1200.0, env: dict[str, str] | None = None, warm: bool = CAN_FORK
) -> Any:
    """Run ``tests/<script>``, which uses vLLM, with ``payload`` on its standard input; return its last JSON line, parsed.

    ``warm``: in a process that has imported vLLM already; ``env`` that vLLM reads at its import has no effect then.
    """
    text = run_script(f"tests/{script}", json.dumps(payload), timeout_s=timeout_s, env=env, warm=warm)
    # vLLM logs on standard output, also behind the result while it shuts down.
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def run_script(
    script: str,
    given: str = "",
    arguments: tuple[str, ...] = (),
    timeout_s: float = 1200.0,
    env: dict[str, str] | None = None,
    warm: bool = CAN_FORK,
) -> str:
    """The same of any file of the repository, with ``given`` on its standard input; return what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        stdin, output = Path(folder) / "given", Path(folder) / "output"
        stdin.write_text(given)
        task = {"words": [str(ROOT / script), *arguments], "stdin": str(stdin), "output": str(output), "env": env or {}}
        code = _warm(task, timeout_s) if warm else _cold(task, timeout_s)
        text = output.read_text()
    assert code == 0, f"{script} ended with {code}:\n{text}"
    return text


def _cold(task: dict[str, Any], timeout_s: float) -> int:
    with open(task["stdin"]) as given, open(task["output"], "w") as output:
        run = subprocess.run(
            [sys.executable, *task["words"]],
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            cwd=ROOT,
            env=_environment() | task["env"],
            check=False,
        )
    return run.returncode


def _warm(task: dict[str, Any], timeout_s: float) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    # The caller's changes of the environment since the server's start count as well.
    server.stdin.write(json.dumps(task | {"env": dict(os.environ) | task["env"], "limit_s": timeout_s}) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, f"the process that has imported vLLM ended with {server.wait()}"
    return int(answer)


@functools.cache
def _server() -> "subprocess.Popen[str]":
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "warm_vllm.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=_environment(),
    )
    atexit.register(server.kill)
    return server


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path}
