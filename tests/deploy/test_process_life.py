"""A process that is killed is known to end before it has given its memory back."""

import signal
import subprocess
import sys
import time

from live_service import wait_until

from deploy.replica.process_life import Life

WAITS = "import sys; {}; print('here', flush=True); sys.stdin.read()"


def started(do="pass"):
    command = [sys.executable, "-c", WAITS.format(do)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    return process


def test_one_that_runs_or_stands_still_is_alive_and_one_that_ends_is_not():
    with started() as process:
        life = Life(process.pid)
        assert not life.ending
        process.send_signal(signal.SIGSTOP)
        assert not life.ending
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        assert wait_until(lambda: life.ending, 10, 0.001), "nobody has waited for it"
        process.wait()
        assert life.ending
        assert life.ending
        assert Life(process.pid).ending
    life.close()


def test_a_killed_one_is_known_before_its_pipes_close():
    with started("kept = bytearray(1 << 29); kept[:: 4096] = bytes(len(kept[:: 4096]))") as process:
        life = Life(process.pid)
        began_s = time.monotonic()
        process.kill()
        assert wait_until(lambda: life.ending, 10, 0.0001)
        known_s = time.monotonic() - began_s
        assert process.stdout.read() == b""  # its end is closed when its memory is gone
        closed_s = time.monotonic() - began_s
    assert known_s < closed_s
