"""A Redis of one's own, in which Ray's GCS keeps what the next one must know."""

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from live_service import wait_until

BINARY = "redis-server"


def missing() -> str | None:
    """Why there can be none; None: there can."""
    return None if shutil.which(BINARY) else "no redis-server on the PATH (Debian's package redis-server has it)"


@contextlib.contextmanager
def redis(folder: Path, address: str, port: int) -> Iterator[str]:
    """Run Redis at an address; yields its password."""
    password = secrets.token_hex(16)
    config = folder / "redis.conf"
    config.touch(0o600)
    config.write_text(f"bind {address}\nport {port}\nrequirepass {password}\ndir {folder}\nsave ''\nappendonly no\n")
    with (folder / "redis.log").open("w") as log:
        process = subprocess.Popen([BINARY, str(config)], stdout=log, stderr=log)
    try:
        ready = "Ready to accept connections"
        assert wait_until(lambda: ready in (folder / "redis.log").read_text(), 20), (folder / "redis.log").read_text()
        yield password
    finally:
        process.terminate()
        process.wait(20)
