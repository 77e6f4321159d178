"""Tells when a file has changed, by its time and its identity: Kubernetes exchanges a link when a mounted file changes."""

from pathlib import Path


class WatchedFile:
    """A file that may be replaced while it is in use; None: there is none, and nothing changes.

    Between two looks at the disk are ``every_s`` of the clock that every call brings.
    """

    def __init__(self, path: Path | None, every_s: float, now_s: float) -> None:
        self._path, self._every_s, self._looked_s = path, every_s, now_s
        self._seen = self._stamp()

    def changed(self, now_s: float) -> bool:
        """Whether the file is another one than at the last look that said so. One that is missing is being replaced."""
        if now_s - self._looked_s < self._every_s:
            return False
        self._looked_s = now_s
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        self._seen = stamp
        return True

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = None if self._path is None else self._path.stat()  # follows links
        except OSError:
            return None
        return None if stat is None else (stat.st_mtime_ns, stat.st_ino)
