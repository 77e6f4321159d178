"""Which addresses the load may go to: this machine, or one host that was allowed by its name. Standard library only.

A load test is a flood. It is meant for a service on the same machine (or behind a tunnel or port-forward to this
machine); every place that opens a connection asks here first. Inside a cluster the service is another host: then the command
line names it a second time, and its addresses must be of a private network.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from loadtest.errors import InputError, LoadtestError


def target_url(url: str, allow_host: str | None = None) -> str:
    """Return the URL without a trailing slash.

    Raises:
        InputError: it is not http, or goes neither to this machine nor to ``allow_host``.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"expected a URL such as http://127.0.0.1:8000, got {url!r} ({error})") from error
    if parts.scheme != "http" or not parts.hostname or parts.path.rstrip("/") or parts.query or parts.username:
        raise InputError(f"expected a URL such as http://127.0.0.1:8000, got {url!r}")
    if not _is_loopback(parts.hostname) and parts.hostname != (allow_host or "").lower():
        wanted = "127.0.0.1, [::1] or localhost" + (f", or {allow_host} as --allow-host says" if allow_host else "")
        raise InputError(
            f"the load goes to this machine only: expected {wanted}, got {parts.hostname!r}; "
            "forward a local port to a remote service to test it, or name a host of your own network with --allow-host"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port or 80}"


def addresses(url: str) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Look the addresses of a URL up that ``target_url`` has returned; IPv4, where the services listen, first.

    Raises:
        InputError: the internet reaches one.
        LoadtestError: there is none.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LoadtestError(f"{url}: cannot find the address of {host!r} ({error})") from error
    result = [(socket.AddressFamily(family), (str(to[0]), int(to[1]))) for family, _, _, _, to in found]
    # Not "is private": the range that some clusters take for their services is neither private nor global.
    public = sorted({address for _, (address, _) in result if ipaddress.ip_address(address.split("%")[0]).is_global})
    if public:
        raise InputError(
            f"{url}: expected a host of a private network, got the public address {public[0]}: a load test of a service "
            "that the internet reaches would look like an attack"
        )
    return sorted(result, key=lambda one: one[0] is not socket.AddressFamily.AF_INET)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
