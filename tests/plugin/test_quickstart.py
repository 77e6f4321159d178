"""The quickstart's two ways as they are written, in a fresh environment: to an answer in three minutes on an idle machine."""

import contextlib
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
PLAIN, SERVICE = "## One engine", "## The service"


def commands(chapter):
    """The first commands of a chapter."""
    lines = (ROOT / "docs" / "quickstart.md").read_text().partition(chapter)[2].partition("    ")
    block = (lines[1] + lines[2]).partition("\n\n")[0]
    return [shlex.split(line) for line in block.splitlines()]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """An environment that the first command has made, and how long that took in seconds."""
    began_s = time.monotonic()
    folder = tmp_path_factory.mktemp("fresh") / ".venv"
    subprocess.run([*commands(PLAIN)[0], f"VENV={folder}", "ACCELERATOR=cpu"], cwd=ROOT, check=True)
    return folder, time.monotonic() - began_s


@contextlib.contextmanager
def running(command, log):
    """A command of the quickstart that answers."""
    with log.open("w") as file:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: answers() or process.poll() is not None, 600, 1.0)
            assert answers(), log.read_text()[-3000:]
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def answers():
    try:
        return httpx.get(f"{URL}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def ask(model):
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "precision": "exact"}
    return httpx.post(f"{URL}/v1/completions", json=body, timeout=60, trust_env=False)


def test_two_commands_lead_to_an_exact_answer_in_three_minutes(fresh, tmp_path):
    (folder, setup_s), began_s = fresh, time.monotonic()
    _, (program, *arguments) = commands(PLAIN)
    with running([program.replace(".venv", str(folder)), *arguments], tmp_path / "log"):
        answer = ask("models/fairytales-8m")
        took_s = setup_s + time.monotonic() - began_s
    assert answer.json()["usage"]["precision"] == "exact", (tmp_path / "log").read_text()[-3000:]
    assert took_s <= LIMIT_S


def test_one_command_leads_to_the_service(fresh, tmp_path):
    (serve,) = commands(SERVICE)
    with running([*serve, f"VENV={fresh[0]}", "ACCELERATOR=cpu"], tmp_path / "log"):
        answer = ask("fairytales-8m")
    assert answer.json()["usage"]["precision"] == "exact", (tmp_path / "log").read_text()[-3000:]
