"""The key of the routes that give orders: where it lies, and whether a request has it. Standard library only."""

import hmac
import os
from pathlib import Path

KEY_FILE_ENV = "NESTEDFP_ADMIN_KEY_FILE"  # names the file in which the process that checks the key reads it
SCHEME = "bearer"


def bearer(authorization: str | None) -> str:
    """Return the key in a header ``Authorization``, empty where there is none. The case of the scheme says nothing (RFC 9110)."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == SCHEME else ""


def refusal(authorization: str | None) -> tuple[int, str] | None:
    """Check a header ``Authorization``; return None where it has the key, else the HTTP status and why.

    403 when the service has no key: ``NESTEDFP_ADMIN_KEY_FILE`` is not set, or its file is empty or cannot be read. 401 when
    the request's is missing or wrong. The file is read each time, so that a key can be exchanged.
    """
    try:
        key = Path(os.environ[KEY_FILE_ENV]).read_text().strip()
    except (KeyError, OSError):
        key = ""
    if not key:
        return (
            403,
            f"admin routes are off: {KEY_FILE_ENV} names no file that holds a key and that this service may read",
        )
    if not hmac.compare_digest(bearer(authorization).encode(), key.encode()):
        return 401, "missing or wrong admin key: send the header 'Authorization: Bearer <key>'"
    return None
