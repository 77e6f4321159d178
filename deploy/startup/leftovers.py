"""What a service leaves on the machine, and its removal: a folder, shared memory, processes.

Everything that has a path lies in one folder of the service's own, which goes when it stops. Shared memory has no folder: vLLM's
queues and locks (that of its progress bars, a ``sem.mp-...``, is one of each engine) are files in /dev/shm with names made up by
Python, and stay there when an engine is killed, which is how Ray ends every replica. So what the service's processes have mapped is
remembered by name, and removed when none of them has it mapped any more.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from deploy.environment import FOLDER_PREFIX, private_folder

LOCK = "service.lock"  # held as long as the service runs
SHARED_MEMORY = Path("/dev/shm")
LOOK_EVERY_S = 5.0
YOUNG_S = 60.0  # a folder that another start has just made may not be locked yet
END_S = 10.0  # for processes to end by themselves


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Yield a folder of this service's own and remove it at the end; first remove those of services that were killed."""
    sweep()
    folder = private_folder()
    with os.fdopen(os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Whether a service that runs has this folder."""
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def sweep(parent: Path = Path("/tmp")) -> None:
    """Remove the folders of services that were killed."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with (folder / LOCK).open("r+") as lock:
                if time.time() - os.fstat(lock.fileno()).st_mtime >= YOUNG_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def remove(names: Iterable[str]) -> None:
    """Remove shared memory by name, all that may be. What a process has mapped stays its own."""
    for name in names:
        with contextlib.suppress(OSError):
            (SHARED_MEMORY / name).unlink(missing_ok=True)


def mapped(pids: list[int]) -> set[str]:
    """Return the names of the shared memory that any of these processes has mapped."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if f"{SHARED_MEMORY}/" in line:
                    inodes.add(int(line.split()[4]))
    # Not by the path that stands there: the C library makes a semaphore under another name and links it to its own.
    with os.scandir(SHARED_MEMORY) as found:
        return {entry.name for entry in found if entry.inode() in inodes}


class SharedMemory:
    """The shared memory of this process's descendants; in use as a context manager."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._unused: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shared memory", daemon=True)

    def __enter__(self) -> "SharedMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        remove(self._names)

    def look(self) -> None:
        """Remember what is mapped now, and remove what two looks have not found any more: a process in ``exec`` maps nothing."""
        now = mapped([process.pid for process in descendants()])
        unused = self._names - now
        gone = unused & self._unused
        remove(gone)
        self._names, self._unused = (self._names | now) - gone, unused - gone

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            with contextlib.suppress(OSError):
                self.look()


def descendants() -> list[psutil.Process]:
    """Return the processes that this one has started, and theirs."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children(recursive=True)
    return []


@contextlib.contextmanager
def no_process_left() -> Iterator[list[psutil.Process]]:
    """End, after the block, what is left of the processes that were put into the list in it."""
    processes: list[psutil.Process] = []
    try:
        yield processes
    finally:
        _, alive = psutil.wait_procs(processes, END_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, END_S)
