"""The other replicas, as one sees them: whether it and they can take a request, and which requests it has sent to them."""

from collections import OrderedDict

from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, Limits

RETRYABLE_BODY_BYTES = Limits.buffer_bytes // 2  # a body of this size fits HAProxy's buffer with any headers


class Elsewhere:
    """Which attempts of a request this replica has sent elsewhere: one that comes back was refused everywhere else."""

    def __init__(self, capacity: int = 4096) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._capacity = capacity

    def may_go(self, headers: dict[bytes, bytes], body_bytes: int) -> bool:
        """Whether a request may be sent on, and remember that it was."""
        attempt = headers.get(ATTEMPT_HEADER.encode())
        if attempt is None or body_bytes > RETRYABLE_BODY_BYTES or attempt in self._seen:
            return False
        self._seen[attempt] = None
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True

    def came_back(self, headers: dict[bytes, bytes]) -> bool:
        """Whether this replica has sent a request on before."""
        return headers.get(ATTEMPT_HEADER.encode()) in self._seen


class PeerView:
    """How a replica without a controller stands, and its peers; one with a controller asks its agent instead."""

    replicas = 1  # that there are, this one included
    directed = "auto"  # the mode in force on this replica: fp16, fp8 or auto
    fault: str | None = None  # why this replica can take no request
    engine_is_late = False  # it has not answered for so long that a request had better go to another replica
