"""Runs ``stream_client.cpp`` against a server and reads what it measured.

The client is compiled by the C++ compiler at first use, and tells what processor time it used. On two busy cores, beside a server
that sends a token every 15 ms to 256 streams, it took in 15,500 tokens/s at 11 us of processor time each; ``vllm bench serve``
11,500 at some 50 us, most of them in lumps (median 0.01 ms between tokens), and the load test's Locust sender 12,300 at 34 us.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

SOURCE = Path(__file__).with_suffix(".cpp")
BIN_S = 0.01  # kBinS of the client


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Times are seconds of ``time.monotonic``; ``first_s`` and ``last_s`` are 0 without a token event."""

    due_s: float  # when it should have been sent: in a closed loop when it was
    start_s: float
    first_s: float
    last_s: float
    end_s: float
    status: int  # of HTTP; 0: no answer
    events: int  # server-sent events with tokens
    tokens: int  # completion tokens as the server's usage counts them
    kind: str  # "ok", or what went wrong


@dataclass(slots=True)
class ClientRun:
    """What one run of a client saw."""

    records: list[Record] = field(default_factory=list)
    bins: list[tuple[float, int]] = field(default_factory=list)  # start of each 10 ms with token events, and how many
    errors: list[str] = field(default_factory=list)  # the first error bodies
    client_s: float = 0.0  # processor time of the client itself
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load. With ``streams`` a closed loop, without one request per entry of ``due_s``.

    Attributes:
        bodies: JSON bodies; a closed loop takes them in turn, an open loop sends the first ``len(due_s)``.
        streams: requests at a time; 0 for an open loop.
        due_s: open loop: when each request is sent, in seconds after the start.
        start_for_s: closed loop: for how long new requests begin.
        ramp_s: closed loop: over how long the streams begin.
        limit_s: after so long the run ends; what is in flight then counts as "cut".
        max_requests: closed loop: requests at most.
        stall_s: a stream that brings nothing for so long is given up and counts as "stall".
    """

    bodies: Sequence[str]
    streams: int = 0
    due_s: Sequence[float] = ()
    start_for_s: float = 10.0
    ramp_s: float = 0.0
    limit_s: float = 60.0
    max_requests: int = 100_000
    stall_s: float = 30.0

    def lines(self) -> str:
        """Return the client's request file."""
        due = [0.0] * len(self.bodies) if self.streams else self.due_s
        return "".join(f"{at:.6f}\t{self.bodies[i % len(self.bodies)]}\n" for i, at in enumerate(due))


def build() -> Path:
    """Compile the client, once for each version of its source; return the program.

    Raises:
        RuntimeError: when there is no C++ compiler, or it refuses.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    program = Path(tempfile.gettempdir()) / f"stream_client-{os.getuid()}-{digest}"
    if program.exists() and program.stat().st_uid == os.getuid():
        return program
    made = program.with_suffix(f".{os.getpid()}")
    command = [os.environ.get("CXX", "c++"), "-O2", "-std=c++17", "-o", str(made), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} not found: the load client needs a C++ compiler (set CXX)") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    made.replace(program)
    return program


def start(url: str, path: str, plan: LoadPlan, requests_file: Path) -> "subprocess.Popen[str]":
    """Start the client with a load; ``finish`` waits for it.

    After SIGTERM it begins no more requests and ends with those in flight.
    """
    requests_file.write_text(plan.lines())
    where = urlsplit(url)
    arguments = {
        "host": where.hostname,
        "port": where.port,
        "path": path,
        "requests": requests_file,
        "streams": plan.streams,
        "start_for_s": plan.start_for_s,
        "ramp_s": plan.ramp_s,
        "limit_s": plan.limit_s,
        "stall_s": plan.stall_s,
        "max_requests": plan.max_requests,
    }
    command = [str(build()), *(f"{key}={value}" for key, value in arguments.items())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]", limit_s: float) -> ClientRun:
    """Wait for a client and return what it saw.

    Raises:
        RuntimeError: when it failed.
    """
    output, _ = process.communicate(timeout=limit_s)
    if process.returncode:
        raise RuntimeError(f"the load client ended with {process.returncode}")
    return parse(output)


def parse(output: str) -> ClientRun:
    """Read the client's lines."""
    load = ClientRun()
    for line in output.splitlines():
        letter, _, rest = line.partition(" ")
        part = rest.split(" ")
        if letter == "R":
            times = [float(value) for value in part[:5]]
            load.records.append(Record(*times, int(part[5]), int(part[6]), int(part[7]), part[8]))
        elif letter == "B":
            load.bins.append((float(part[0]), int(part[1])))
        elif letter == "E":
            load.errors.append(rest)
        elif letter == "U":
            load.client_s, load.start_s = float(part[0]), float(part[1])
    return load
