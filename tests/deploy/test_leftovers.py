"""What a service leaves on the machine, and its removal."""

import os
import subprocess
import sys
import textwrap
import time
from multiprocessing import shared_memory

import pytest
from live_service import wait_until
from processes import ROOT

from deploy.startup import leftovers


@pytest.fixture
def memory():
    """A piece of shared memory that this process has not mapped, and nobody tracks."""
    made = shared_memory.SharedMemory(create=True, size=4096)
    from multiprocessing.resource_tracker import unregister

    unregister(made._name, "shared_memory")
    made.close()
    yield made.name
    leftovers.remove([made.name])


def exists(name):
    return (leftovers.SHARED_MEMORY / name).exists()


@pytest.fixture
def semaphore():
    """The name of a lock, and a child that has made it, as an engine does, and has nobody to remove it when it is killed."""
    script = textwrap.dedent(
        """
        import multiprocessing, time
        from multiprocessing.resource_tracker import unregister
        lock = multiprocessing.get_context("spawn").RLock()
        unregister(lock._semlock.name, "semaphore")  # the tracker is killed with the engine
        print(lock._semlock.name, flush=True)
        time.sleep(600)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    name = "sem." + process.stdout.readline().strip().lstrip("/")
    process.stdout.close()
    yield name, process
    killed(process)
    leftovers.remove([name])


def killed(process):
    process.kill()
    process.wait()


def test_the_folder_goes_with_the_service():
    with leftovers.own_folder() as folder:
        (folder / "ray").mkdir()
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_what_a_killed_process_had_mapped_goes_after_two_looks_or_at_the_end_and_nothing_of_others(semaphore, memory):
    name, process = semaphore
    with leftovers.SharedMemory() as watch:
        watch.look()
        watch.look()
        assert exists(name), "in use"
        killed(process)
        watch.look()
        watch.look()
        assert not exists(name)
    assert exists(memory), "nobody here had it mapped"


def test_the_next_start_removes_the_folder_of_a_killed_service(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, pathlib
        from deploy import environment
        from deploy.startup import leftovers
        leftovers.private_folder = lambda: pathlib.Path(environment.tempfile.mkdtemp(prefix="nestedfp-", dir={str(tmp_path)!r}))
        with leftovers.own_folder() as folder:
            os.kill(os.getpid(), 9)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -9
    (folder,) = tmp_path.iterdir()
    leftovers.sweep(tmp_path)
    assert folder.exists(), "it may be one that is about to be locked"
    old = time.time() - 2 * leftovers.YOUNG_S
    os.utime(folder / leftovers.LOCK, (old, old))
    leftovers.sweep(tmp_path)
    assert not folder.exists()


def test_no_start_touches_the_folder_of_a_running_service_or_one_of_another_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "private_folder", lambda: _made(tmp_path / "nestedfp-running"))
    other = _made(tmp_path / "nestedfp-made-by-hand")
    with leftovers.own_folder() as folder:
        old = time.time() - 2 * leftovers.YOUNG_S
        os.utime(folder / leftovers.LOCK, (old, old))
        leftovers.sweep(tmp_path)
        assert folder.exists()
    assert other.exists()


@pytest.mark.parametrize("whose", ["another user's", "reached by a link"])
def test_no_start_removes_a_folder_of_another_user(tmp_path, whose):
    folder = _made(tmp_path / "nestedfp-left")
    if whose == "another user's":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        os.chown(folder, 12345, 12345)
    else:
        real = folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(real)
    (folder / leftovers.LOCK).touch()
    old = time.time() - 2 * leftovers.YOUNG_S
    os.utime(folder / leftovers.LOCK, (old, old))
    leftovers.sweep(tmp_path)
    assert folder.exists()


def _made(path):
    path.mkdir()
    return path


def test_processes_that_do_not_end_are_ended(monkeypatch):
    monkeypatch.setattr(leftovers, "END_S", 0.5)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with leftovers.no_process_left() as processes:
        # Not all: Python's own tracker of what tests after this one share is among them.
        processes.extend(each for each in leftovers.descendants() if each.pid == process.pid)
    assert len(processes) == 1
    assert wait_until(lambda: process.poll() is not None, 5)
