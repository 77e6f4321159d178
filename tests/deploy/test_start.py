"""The start-up command around the service: the admin key of each, what it leaves, and signals to the whole process group."""

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import refused_start
from live_service import wait_until
from processes import ROOT

from deploy import serve
from deploy.config import ADMIN_KEY_ENV, load
from deploy.startup import leftovers


def test_a_given_key_goes_into_a_file_for_the_user_alone(tmp_path):
    (tmp_path / "own").mkdir()
    with serve.admin_key("mine", tmp_path / "own", tmp_path / "runs") as (path, where):
        assert "environment" in where
        assert path.read_text() == "mine"
        assert path.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "runs").exists()


def test_a_key_is_made_for_the_user_alone_and_a_second_service_has_its_own(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    runs = tmp_path / "runs"
    with (folders[0] / leftovers.LOCK).open("w") as lock, serve.admin_key("", folders[0], runs) as (first, _):
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert len(first.read_text()) >= 32
        assert first.stat().st_mode & 0o077 == 0
        with serve.admin_key("", folders[1], runs) as (second, where):
            assert where == str(second)
        assert (runs / "admin.key").read_text() == first.read_text() != second.read_text()
    assert not list(runs.iterdir())
    (runs / "admin.key").symlink_to(first)  # of a service that was killed
    second.unlink()
    with serve.admin_key("", folders[1], runs) as (second, _):
        assert (runs / "admin.key").read_text() == second.read_text() != first.read_text()


@pytest.mark.parametrize("keys_file", [None, "keys.yaml"])
def test_what_to_try_next_is_a_command_that_a_shell_takes_and_names_the_pages(keys_file):
    config = load(serve.DEFAULT_CONFIG)
    config = config.model_copy(update={"http": config.http.model_copy(update={"keys_file": keys_file})})
    head, request, *pages = serve.next_steps(config, "http://127.0.0.1:8000", "runs/admin.key").splitlines()
    assert head == "try next:"
    command = shlex.split(request)
    assert command[:2] == ["curl", "http://127.0.0.1:8000/v1/completions"]
    assert json.loads(command[command.index("-d") + 1])["model"] == config.model.id
    assert any("Authorization: Bearer" in word for word in command) == (keys_file is not None)
    assert [line.split()[-1] for line in pages] == [
        "http://127.0.0.1:8000/control",
        "http://127.0.0.1:8000/metrics",
        "runs/admin.key",
    ]


@pytest.mark.slow
def test_what_vllm_cannot_use_is_said_in_one_sentence_and_nothing_is_started(tmp_path):
    def change(data):
        data["engine"]["extra"] = {"tool_cal_parser": "hermes"}

    # A cluster of Ray's that is started with no folder of its own makes its session below RAY_TMPDIR.
    done = refused_start.start(tmp_path, change, **{ADMIN_KEY_ENV: "a-key", "RAY_TMPDIR": str(tmp_path)})
    first, *_ = done.stdout.splitlines()
    cause = "engine.extra: vLLM has no argument 'tool_cal_parser', but 'tool_call_parser'"
    assert (done.returncode, first.startswith("error: "), cause in first) == (2, True, True), done.stdout
    assert "starting" not in done.stdout
    assert not (tmp_path / "ray").exists(), "a cluster of Ray's was started"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_a_file_can_be_checked_beside_a_service_that_runs(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def change(data):
            data["http"]["port"] = listener.getsockname()[1]

        good = refused_start.start(tmp_path, change, "--check", RAY_TMPDIR=str(tmp_path))
    assert (good.returncode, good.stdout.count("\n")) == (0, 1), good.stdout
    assert "config.yaml: can be started: 1 replica(s) of fairytales-8m, policy " in good.stdout
    assert not (tmp_path / "ray").exists(), "a cluster of Ray's was started"


# The start-up command with a service that only says which signals come.
SHIELDED = """
import sys
from deploy import serve
if "--in-own-session" in sys.argv:
    import os, signal, time
    def stop(*_):
        print("told", flush=True)
        time.sleep(1)
        print("stopped in order", flush=True)
        os._exit(7)
    signal.signal(signal.SIGTERM, stop)
    child = __import__("subprocess").Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(sys.stdin.read(), child.pid, os.getpid(), flush=True)
    while True:
        time.sleep(0.1)
Popen = serve.subprocess.Popen
serve.subprocess.Popen = lambda command, **rest: Popen([sys.executable, sys.argv[0], *command[3:]], **rest)
sys.exit(serve.shield([]))
"""


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_text()


def shielded(tmp_path):
    script = tmp_path / "shielded.py"
    script.write_text(SHIELDED)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), ADMIN_KEY_ENV: "a-key"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    key, child, service = process.stdout.readline().split()
    assert key == "a-key"
    assert "a-key" not in environment_of(child) + environment_of(service)
    return process, psutil.Process(int(child)), psutil.Process(int(service))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_process_group_reaches_the_service_once_and_its_servers_never(tmp_path, number):
    process, child, service = shielded(tmp_path)
    try:
        os.killpg(process.pid, number)
        assert process.stdout.readline() == "told\n"
        assert child.is_running(), "the service's own servers live until it ends them"
        assert process.stdout.readline() == "stopped in order\n"
        assert process.wait(10) == 7, "the exit status is the service's"
    finally:
        child.kill()
        process.stdout.close()
    assert not service.is_running()


def test_a_killed_start_up_command_stops_the_service(tmp_path):
    process, child, service = shielded(tmp_path)
    try:
        process.kill()
        process.wait()
        assert process.stdout.readline() == "told\n"
        assert wait_until(lambda: not service.is_running() or service.status() == psutil.STATUS_ZOMBIE, 10)
    finally:
        child.kill()
        process.stdout.close()
