"""The faults, one function each: what is done to the service, and when that began and ended."""

import contextlib
import json
import os
import re
import resource
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.abuse import attacks, hostile
from chaos.fault_cost import SEVERAL, Injection, outcome
from chaos.load import open_load
from chaos.watch import KINDS, Family, running
from loadtest.sender.plan import PlannedRequest

NOTICE_LIMIT_S = 60.0  # a stopped process that nobody has ended by then is continued
ATTACK_LIMIT_S = 60.0
MALFORMED_FOR_S = 420.0  # on two cores that others use as well they might take for ever
SLOWEST_KEPT = 50  # of the malformed requests, in malformed.jsonl
KV_STREAMS, KV_TOKENS = 20, 800
KV_LIMIT_S = 240.0  # for each of them


@dataclass(frozen=True, slots=True)
class Arena:
    """The service under attack.

    Attributes:
        url: of loopback.
        family: its processes.
        model_id: that it serves.
        max_body_bytes: that it accepts.
        malformed: requests to send.
        folder: for files of this fault.
    """

    url: str
    family: Family
    model_id: str
    max_body_bytes: int
    malformed: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and what is to be said of it beyond the figures."""

    injection: Injection
    notes: tuple[str, ...] = ()
    hung: int = 0  # requests of the attack itself that got no answer


Fault = Callable[[Arena], Done]


class NoVictim(RuntimeError):
    """The service has no process of this kind."""


def victims_of(arena: Arena, kind: str) -> list[int]:
    """Return the processes that a fault of this kind hits: one, where each replica has its own, else all.

    Raises:
        NoVictim: there is none.
    """
    found = sorted(arena.family.look().alive[kind])
    if not found:
        raise NoVictim(f"the service has no process of the kind {kind!r}")
    return found[:1] if kind in SEVERAL else found


def kill(kind: str, arena: Arena) -> Done:
    """End processes without a warning."""
    victims = victims_of(arena, kind)
    began_s = time.monotonic()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return Done(Injection(began_s, began_s, kind, frozenset(victims), killed=True))


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Have processes stand still for the length of the block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def stop(kind: str, arena: Arena) -> Done:
    """Have processes stand still until the service has ended them, or the limit."""
    victims = victims_of(arena, kind)
    began_s = time.monotonic()
    with stopped(victims):
        while any(map(running, victims)) and time.monotonic() - began_s < NOTICE_LIMIT_S:
            time.sleep(0.05)
    ended_s = time.monotonic()
    hit = Injection(began_s, began_s, kind, frozenset(victims))
    if ended_s - began_s < NOTICE_LIMIT_S:
        return Done(hit, (f"ended by the service after {ended_s - began_s:.1f} s",))
    continued = Injection(began_s, ended_s, kind, frozenset(victims))
    return Done(continued, (f"not ended by the service: continued after {NOTICE_LIMIT_S:.0f} s",))


def pause(kind: str, for_s: float, times: int, arena: Arena) -> Done:
    """Have processes stand still for a while, again and again: what they send and answer comes late."""
    victims = victims_of(arena, kind)
    began_s = time.monotonic()
    for _ in range(times):
        with stopped(victims):
            time.sleep(for_s)
        time.sleep(for_s if times > 1 else 0)
    said = f"{times} times {for_s:g} s" if times > 1 else f"for {for_s:g} s"
    return Done(Injection(began_s, time.monotonic(), kind, frozenset(victims)), (f"stood still {said}",))


def full_log_disk(arena: Arena, for_s: float = 10.0) -> Done:
    """Let no file of the replicas, the controller and its routes grow any more, as on a full disk."""
    kinds = ("replica", "controller", "control_routes")
    before = {}
    began_s = time.monotonic()
    try:
        for process in arena.family.processes():
            if any(KINDS[kind](process) for kind in kinds):
                before[process.pid] = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, before[process.pid][1]))
        time.sleep(for_s)
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    said = f"no file of {len(before)} processes could grow for {for_s:g} s"
    return Done(Injection(began_s, time.monotonic()), (said,))


def full_kv_cache(arena: Arena) -> Done:
    """Ask for more tokens at once than the KV caches hold."""
    requests = (PlannedRequest(at_s=0.0, prompt_tokens=16, output_tokens=KV_TOKENS),) * KV_STREAMS
    records = arena.folder / "kv-requests.jsonl"
    before = preemptions(arena.url)
    began_s = time.monotonic()
    with open_load(arena.url, arena.model_id, requests, 1.0, KV_LIMIT_S, records) as sent:
        ends = [outcome(record) for record in sent.whole()]
    said = (
        f"{KV_STREAMS} streams of {KV_TOKENS} tokens: {ends.count('ok')} whole, "
        f"{preemptions(arena.url) - before:.0f} preemptions"
    )
    return Done(Injection(began_s, time.monotonic()), (said,), ends.count("hung"))


def preemptions(url: str) -> float:
    """Return how often engines have taken the KV cache from a running request, by their own count."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:num_preemptions_total\S* (\S+)", text, re.MULTILINE))


def slow_loris(arena: Arena) -> Done:
    """Two hundred clients that never finish their requests."""
    began_s = time.monotonic()
    said = attacks.slow_loris(arena.url, 200, 40.0)
    return Done(Injection(began_s, time.monotonic()), (said,))


def oversized(arena: Arena) -> Done:
    """Bodies and heads that are too large, ten of each kind."""
    began_s = time.monotonic()
    said, hung = [], 0
    for name, request in attacks.oversized(arena.max_body_bytes).items():
        came = [attacks.send_raw(arena.url, request) for _ in range(10)]
        hung += came.count("silent")
        said.append(f"{name}: {', '.join(sorted(set(came)))}")
    return Done(Injection(began_s, time.monotonic()), tuple(said), hung)


def malformed(arena: Arena) -> Done:
    """Thousands of requests that are wrong in every way."""
    cases = hostile.malformed(arena.malformed)  # takes seconds
    began_s = time.monotonic()
    done = attacks.send_all(arena.url, cases, ATTACK_LIMIT_S, begin_for_s=MALFORMED_FOR_S)
    worst = [sent for sent in done if not isinstance(sent.came, int) or sent.came >= 500]
    worst += sorted(done, key=lambda sent: -sent.took_s)[:SLOWEST_KEPT]
    lines = [
        json.dumps({"name": sent.case.name, "came": repr(sent.came), "took_s": sent.took_s, "text": sent.text[:300]})
        for sent in worst
    ]
    (arena.folder / "malformed.jsonl").write_text("".join(f"{line}\n" for line in lines))
    hung = sum(sent.hung for sent in done)
    left = (
        [] if len(done) == len(cases) else [f"{len(cases)} were to be sent; none begun after {MALFORMED_FOR_S:.0f} s"]
    )
    return Done(Injection(began_s, time.monotonic()), (attacks.summary(done), *left), hung)


# From what costs a service least to what costs it most. The GCS is not killed: without a Redis beside it a cluster of one
# machine ends with it.
FAULTS: Mapping[str, Fault] = {
    "controller killed": partial(kill, "controller"),
    "controller delayed": partial(pause, "controller", 0.5, 10),
    "controller cut off": partial(pause, "controller", 8.0, 1),
    "controller stopped": partial(stop, "controller"),
    "control routes killed": partial(kill, "control_routes"),
    "control routes stopped": partial(stop, "control_routes"),
    "HAProxy killed": partial(kill, "haproxy"),
    "HAProxy stopped": partial(stop, "haproxy"),
    "HAProxy manager killed": partial(kill, "proxy_manager"),
    "Serve controller killed": partial(kill, "serve_controller"),
    "GCS stopped for 10 s": partial(pause, "gcs", 10.0, 1),
    "engine killed": partial(kill, "engine"),
    "engine stopped": partial(stop, "engine"),
    "worker killed": partial(kill, "worker"),
    "worker stopped": partial(stop, "worker"),
    "replica killed": partial(kill, "replica"),
    "replica stopped": partial(stop, "replica"),
    "log disk full": full_log_disk,
    "KV cache exhausted": full_kv_cache,
    "slow loris": slow_loris,
    "oversized requests": oversized,
    "malformed requests": malformed,
}
