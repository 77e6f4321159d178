"""A process that is killed is known to end before it has given its memory back."""

import select
import signal
import subprocess
import sys

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
    def known_first():
        with started("kept = bytearray(1 << 29); kept[:: 4096] = bytes(len(kept[:: 4096]))") as process:
            life = Life(process.pid)
            process.kill()
            assert wait_until(lambda: life.ending, 10, 0.0001)
            still_open = not select.select([process.stdout], [], [], 0)[0]
            assert process.stdout.read() == b""  # its end is closed when its memory is gone
        return still_open

    # Once is enough: this process may be paused between the two looks.
    assert any(known_first() for _ in range(5))
