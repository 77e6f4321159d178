"""Every record that the load test writes or reads: requests, service status, timeline. No I/O beyond JSON lines.

``*_s`` are seconds after the start of the run, ``*_ms`` of a request are milliseconds after its *intended* send time. A
request that left late therefore carries its lateness in every latency: see docs/loadtest.md on coordinated omission.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from nestedfp.answers import Answer, answer_of
from workload.frozen import FrozenModel

# fp16, fp8 and adaptive are directed; plain, or plain-NAME, is a server that takes no directives; probe is the calibration.
Policy = Annotated[str, Field(pattern=r"^(fp16|fp8|adaptive|probe|plain(-[A-Za-z0-9._-]{1,40})?)$")]
Count = Annotated[int, Field(ge=0)]


class PeerRecord(BaseModel):
    """Base of what the service tells us: fields we do not know are left out, so that it may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TokensByPrecision(PeerRecord):
    """Tokens by the precision of the step that computed them."""

    fp16: Count = 0
    fp8: Count = 0


class PromptTokens(TokensByPrecision):
    """Those of a prompt that were computed; ``cached`` ones were read from the prefix cache."""

    cached: TokensByPrecision = TokensByPrecision()


class PrecisionTokens(PeerRecord):
    """``usage.precision_tokens`` of a response."""

    prompt: PromptTokens
    completion: TokensByPrecision
    kv_cache: str | None = None  # "fp8": the KV entries are rounded

    @property
    def answer(self) -> Answer:
        """The class of the answer."""
        return answer_of(self.model_dump())


class RequestRecord(FrozenModel):
    """One request, whether it succeeded or not."""

    policy: Policy
    index: Count
    intended_s: float
    sent_s: float | None  # when the sender took it up; None: never sent
    prompt_tokens: Count
    max_tokens: Count
    output_tokens: Count
    asked: str | None = None  # the precision that it asked for; None: it said nothing
    status: int | None = None  # HTTP; None when no answer came
    error: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None  # mean time per output token after the first; None below two tokens
    latency_ms: float | None = None
    chunk_ms: tuple[float, ...] = ()  # arrival of every chunk that carried tokens; differences are the ITL
    precision_tokens: PrecisionTokens | None = None

    @property
    def dispatch_lag_ms(self) -> float | None:
        """How late the request left."""
        return None if self.sent_s is None else (self.sent_s - self.intended_s) * 1e3


class ServiceReplica(PeerRecord):
    """One replica in GET /status."""

    id: str
    mode: str  # of its latest step
    directed: str | None = None  # what the controller wants of it; None: not reported
    epoch: Count = 0
    running: Count = 0
    waiting: Count = 0
    tokens_fp16: Count = 0
    tokens_fp8: Count = 0
    switches: Count = 0
    fp8_reasons: dict[str, Count] = Field(default_factory=dict)  # FP8 steps by what asked for them
    ready: bool = True  # takes requests
    stale: bool = False  # silent for too long, or its engine does not answer


class ServiceStatus(PeerRecord):
    """GET /status."""

    mode: str  # of the directive in force
    epoch: Count
    reason: str = ""
    slo_ttft_ms: float | None = None  # what the controller steers by; None: not reported
    slo_tpot_ms: float | None = None
    path_saturated: bool = False  # the path limits a replica, not its engine
    replicas: tuple[ServiceReplica, ...]

    @property
    def answering(self) -> int:
        """Replicas that take requests, are heard of and whose engines answer."""
        return sum(replica.ready and not replica.stale for replica in self.replicas)

    @property
    def waiting(self) -> int:
        """Requests waiting in all replicas."""
        return sum(replica.waiting for replica in self.replicas)

    @property
    def running(self) -> int:
        """Requests running in all replicas."""
        return sum(replica.running for replica in self.replicas)


class TimelineSample(FrozenModel):
    """The service's status at one moment of a run."""

    policy: Policy
    at_s: float
    status: ServiceStatus


def mean_tpot_ms(chunk_ms: Sequence[float], output_tokens: int) -> float | None:
    """Mean time per output token after the first. A chunk may carry several tokens, so tokens divide and not chunks."""
    if output_tokens < 2 or len(chunk_ms) < 2:
        return None
    return (chunk_ms[-1] - chunk_ms[0]) / (output_tokens - 1)


def read_requests(path: Path) -> tuple[RequestRecord, ...]:
    """Read a requests file, sorted by index."""
    with path.open(encoding="utf-8") as file:
        records = (RequestRecord.model_validate_json(line) for line in file if line.strip())
        return tuple(sorted(records, key=lambda record: record.index))
