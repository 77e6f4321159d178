"""Which addresses the load may go to: this machine only. Standard library only.

A load test is a flood. It is meant for a service on the same machine (or behind a tunnel or port-forward to this
machine); every place that opens a connection asks here first.
"""

import ipaddress
from urllib.parse import urlsplit

from loadtest.errors import LoadtestError


def loopback_url(url: str) -> str:
    """Return the URL without a trailing slash, or refuse it when it is not http to loopback."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LoadtestError(f"expected a URL such as http://127.0.0.1:8000, got {url!r} ({error})") from error
    if parts.scheme != "http" or not parts.hostname or parts.path.rstrip("/") or parts.query or parts.username:
        raise LoadtestError(f"expected a URL such as http://127.0.0.1:8000, got {url!r}")
    if not _is_loopback(parts.hostname):
        raise LoadtestError(
            f"the load goes to this machine only: expected 127.0.0.1, [::1] or localhost, got {parts.hostname!r}; "
            "forward a local port to a remote service to test it"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port or 80}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
