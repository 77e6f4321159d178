"""The quickstart as it is written, in a fresh environment: two commands to an answer, in three minutes on an idle machine."""

import os
import shlex
import signal
import subprocess
import time

import httpx
import pytest
from live_service import wait_until
from processes import ROOT

pytestmark = [pytest.mark.fresh, pytest.mark.filterwarnings("ignore")]

LIMIT_S = 180
URL = "http://127.0.0.1:8000"


def commands():
    page = (ROOT / "docs" / "quickstart.md").read_text()
    chapter = page.partition("## One engine")[2].partition("\nThen:")[0]
    return [line.strip() for line in chapter.splitlines() if line.startswith("    ")]


def answers():
    try:
        return httpx.get(f"{URL}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_two_commands_lead_to_an_exact_answer_in_three_minutes(tmp_path):
    began_s = time.monotonic()
    setup, serve = (shlex.split(line) for line in commands())
    subprocess.run([*setup, f"VENV={tmp_path}/.venv", "ACCELERATOR=cpu"], cwd=ROOT, check=True)
    serve[0] = serve[0].replace(".venv", f"{tmp_path}/.venv")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            assert wait_until(lambda: answers() or process.poll() is not None, 600, 1.0)
            body = {
                "model": "models/fairytales-8m",
                "prompt": "Once upon a time",
                "max_tokens": 8,
                "precision": "exact",
            }
            answer = httpx.post(f"{URL}/v1/completions", json=body, timeout=60, trust_env=False)
            took_s = time.monotonic() - began_s
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert answer.json()["usage"]["precision"] == "exact", (tmp_path / "log").read_text()[-3000:]
    assert took_s <= LIMIT_S
