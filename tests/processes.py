"""Starts the project's own scripts as processes, fed with JSON and answering with a line of JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_json(script: str, payload: Any, timeout_s: float = 1200.0, env: dict[str, str] | None = None) -> Any:
    """Run ``tests/<script>`` with ``payload`` on its standard input; return its last JSON line, parsed."""
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / script)],
        input=json.dumps(payload),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            **(env or {}),
        },
        check=False,
    )
    assert process.returncode == 0, f"{script} ended with {process.returncode}:\n{process.stdout}\n{process.stderr}"
    # vLLM logs on standard output, also behind the result while it shuts down.
    return json.loads([line for line in process.stdout.splitlines() if line.startswith("{")][-1])
