"""The replicas that HAProxy knows: read from Ray Serve's configuration, and kept where Serve names them no longer. Pure.

Standard library only, and light: HAProxy's launcher imports it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# That the replicas of an application which Serve knows no more are kept for: it may be between two versions.
KEPT_S = 900.0
TEMPLATE_CHANGED = "Ray Serve's HAProxy configuration is not as expected"
LEAVES = "This node is being drained."  # what Ray Serve has a node's HAProxy say that is about to go


@dataclass
class Backend:
    """One application's replicas: lines of HAProxy's grammar, as Ray Serve wrote them."""

    name: str
    prefix: str
    check: str = ""  # the default-server line
    servers: list[str] = field(default_factory=list)
    unnamed_s: float | None = None  # since when Ray Serve does not know it any more, in seconds of time.monotonic()


@dataclass(frozen=True)
class Targets:
    """What is taken over from Ray Serve's configuration."""

    socket: str
    global_lines: tuple[str, ...]
    bind: str
    health_rules: tuple[str, ...]
    backends: tuple[Backend, ...]

    @property
    def leaves(self) -> bool:
        """Whether the node is being drained."""
        return any(LEAVES in rule for rule in self.health_rules)


def read(text: str) -> Targets:
    """Read the targets out of a configuration that Ray Serve wrote.

    Raises:
        ValueError: naming what is missing; another version of Ray may write another configuration.
    """
    lines = [line.strip() for line in text.splitlines()]
    socket = re.search(r"^\s*stats socket (\S+) ", text, re.MULTILINE)
    kept = ("maxconn ", "nbthread ", "server-state-base ", "server-state-file ", "hard-stop-after ")
    bind, rules, backends = _sections(lines, dict(re.findall(r"^\s*acl is_(\S+) path_beg (\S+)$", text, re.MULTILINE)))
    used = set(re.findall(r"^\s*use_backend (\S+) if is_", text, re.MULTILINE))
    parts = {
        "bind": bind,
        "acl healthcheck": any("healthcheck" in rule for rule in rules),
        "acl is_... path_beg": used <= backends.keys(),
        "use_backend": used >= backends.keys(),
        "default-server": all(backend.check for backend in backends.values()),
        "stats socket": socket,
    }
    if socket is None or not all(parts.values()):
        missing = ", ".join(repr(part) for part, there in parts.items() if not there)
        raise ValueError(f"{TEMPLATE_CHANGED}: no line {missing}")
    return Targets(
        socket=socket[1],
        global_lines=tuple(line for line in lines if line.startswith(kept)),
        bind=bind,
        # Metrics of Ray Serve's own are off, so that variables for them are not needed.
        health_rules=tuple(rule for rule in rules if "set-var" not in rule and "set-log-level" not in rule),
        backends=tuple(sorted(backends.values(), key=lambda backend: -len(backend.prefix))),
    )


def _sections(lines: Sequence[str], prefixes: Mapping[str, str]) -> tuple[str, list[str], dict[str, Backend]]:
    """Return the frontend's line ``bind`` and its rules for health, and the backends of these names with their path prefixes."""
    section = bind = ""
    rules: list[str] = []
    backends: dict[str, Backend] = {}
    for line in lines:
        head, _, rest = line.partition(" ")
        if head in ("global", "defaults", "frontend", "backend", "listen"):
            section = line
            if head == "backend" and rest in prefixes:
                backends[rest] = Backend(rest, prefixes[rest].rstrip("/"))
        elif section == "frontend http_frontend":
            if head == "bind":
                bind = line
            elif "healthcheck" in line or re.search(r"\broutes$", line) or line.startswith("acl backend_"):
                rules.append(line)
        elif section.startswith("backend ") and (name := section.partition(" ")[2]) in backends:
            if head == "default-server":
                backends[name].check = line
            elif head == "server" and not is_backup(line):
                backends[name].servers.append(line)
    return bind, rules, backends


def keeping(targets: Targets, before: Sequence[Backend], now_s: float) -> Targets:
    """Return the targets with those replicas that Ray Serve names no more, and that serve still.

    While it builds the next version of an application, which takes as long as its imports, and for as long as a build has failed,
    it names none of the replicas: they stay. In the moment in which a new replica runs it leaves out the old one, which goes on
    taking requests for a while: it stays as a backup until the next change, for the time until the new one has answered a check.
    Of an application that has been deleted the checks fail soon. One with the same prefix takes its place.

    Args:
        before: the backends of the configuration in force.
        now_s: ``time.monotonic()``, which no clock that is set back makes longer.
    """
    in_force = {each.name: each for each in before}
    named = []
    for backend in targets.backends:
        known = in_force.get(backend.name)
        old = [line for line in known.servers if not is_backup(line)] if known else []
        stay = {name_of(line) for line in backend.servers}
        left_out = [f"{line} backup" for line in old if name_of(line) not in stay]
        named.append(replace(backend, servers=[*backend.servers, *left_out] if backend.servers else old))
    taken = {backend.prefix for backend in named} | {backend.name for backend in named}
    gone = [
        replace(each, unnamed_s=now_s if each.unnamed_s is None else each.unnamed_s)
        for each in in_force.values()
        if not taken & {each.prefix, each.name}
    ]
    kept = [each for each in gone if each.unnamed_s is not None and now_s - each.unnamed_s < KEPT_S]
    return replace(targets, backends=tuple(sorted([*named, *kept], key=lambda backend: -len(backend.prefix))))


def is_backup(server: str) -> bool:
    """Whether a line ``server`` is of one that is asked only when there is no other."""
    return server.endswith(" backup")


def name_of(server: str) -> str:
    """Return the name of a line ``server``."""
    return server.split()[1]
