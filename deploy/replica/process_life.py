"""Whether a process is on its way out: known from the kernel before anybody who waits for its end hears of it.

A process that is killed gives its memory back first and closes its files then; with gigabytes of memory that takes tenths of a
second, in which whoever watches a pipe or waits for a child takes it for alive, and requests go into a dead engine.
"""

import contextlib
import os

PF_EXITING = 0x4  # of the kernel's flags of a task, since do_exit began


class Life:
    """One process of this machine, some microseconds a look.

    Args:
        pid: its id, while it runs.
    """

    def __init__(self, pid: int) -> None:
        try:
            # Kept open: a later process of the same number is another file. Of the main thread alone: nothing to add up.
            self._stat: int | None = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._stat = None

    @property
    def ending(self) -> bool:
        """Whether it has ended or has begun to."""
        if self._stat is None:
            return True
        try:
            said = os.pread(self._stat, 512, 0)
        except OSError:  # gone, and waited for
            self.close()
            return True
        fields = said.rpartition(b")")[2].split()  # its name may hold blanks and brackets
        return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & PF_EXITING)

    def close(self) -> None:
        """Let go of it."""
        stat, self._stat = self._stat, None
        if stat is not None:
            with contextlib.suppress(OSError):
                os.close(stat)
