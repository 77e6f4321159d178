"""The configuration of HAProxy, as this service needs it. Pure.

Ray Serve starts HAProxy on every node and writes its configuration: the addresses of the replicas, their health checks, the
admin socket. Four things in it do not suit this service: it listens for statistics on all interfaces, it turns every 502 to
504 into a 500, it hands requests to a Python proxy when no replica is up, where they wait unseen, and it names no replica of
an application while Serve builds the next version of it, although they serve. So the launcher (launcher.py) reads the
targets out of it (targets.py) and writes a configuration of its own, with limits on requests, answers in OpenAI's format, and a
second try on another replica where one says that a request belongs elsewhere.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.error_types import error_type
from deploy.haproxy.route_rule import CONSTANTS
from deploy.haproxy.targets import Backend, Targets, is_backup, name_of

# A replica's word that another one should take the request; HAProxy tries that, no client sees it.
ELSEWHERE_STATUS = 425
ATTEMPT_HEADER = "x-nestedfp-attempt"  # the same at every try of one request; a client's own is overwritten
REQUEST_ID = "%[var(txn.request_id),json(ascii)]"  # as HAProxy writes it into a JSON string
# The request headers that this service reads; every other one is removed. Ray Serve, vLLM and uvicorn read headers of their own
# from any client: one has a request go on whose client has left, another ends it, others name a model, a session or a rank.
KNOWN = (
    "accept",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "x-nestedfp-attempt",
    "x-nestedfp-precision",
    "x-nestedfp-queue-deadline-s",
    "x-nestedfp-session",
    "x-request-id",
    "x-vllm-priority",
)
MOST_TRIES = 8  # replicas that a request is offered to, however many there are
RETRY_AFTER_S = 2
ABSENT_RETRY_AFTER_S = 10  # where Serve names no replica: one takes a while to start
METHODS = "GET POST HEAD OPTIONS PUT PATCH DELETE"  # others a replica's server would answer without OpenAI's format
# Where the control application is mounted, below the application whose replicas it directs; its routes also answer there.
CONTROL_PREFIX = "/control"
CONTROL_PATHS = "/status|/decisions|/metrics|/admin/.*?"
SUCCESSOR = "successor"  # the backend of an HAProxy that was told to go: the one that listens now
JSON = "res.hdr(content-type) -m sub json"
NOBODY = "no replica can take this request now: the service starts, stops or has lost its replicas; try again"
OF_SERVE = (
    # What Serve has no route for has been deleted, or moved to another prefix: this project's server says 404 in JSON.
    (404, 503, NOBODY, RETRY_AFTER_S),
    (500, 500, "the service failed on this request; its log says why", None),
    (503, 503, "this replica cannot take the request now; try again", RETRY_AFTER_S),
)
ROUTE = Path(__file__).with_name("route.lua")
PROMPTS = "/(completions|responses)/*$"  # the routes whose prompts go by the replicas' room


def tries(replicas: int) -> int:
    """Return how often a request is offered, where there may be so many replicas at most."""
    return max(2, min(MOST_TRIES, 2 * replicas))


@dataclass(frozen=True)
class Limits:
    """What HAProxy enforces."""

    body_bytes: int = 8 << 20  # largest body; a larger one gets 413
    header_bytes: int = 16 << 10  # largest sum of headers; more gets 431
    buffer_bytes: int = 64 << 10  # of each connection; a request that fits can be tried on another replica
    tries: int = 4  # replicas that a request is offered to at most, the first included
    idle_client_s: int = 60  # a client that sends nothing it should, or reads nothing, for so long is let go
    request_s: int = 30  # a request must have arrived as a whole within this time
    check_s: int = 5  # a replica that has not answered two health checks for so long each gets no requests


def control_routes(backends: Sequence[Backend]) -> list[str]:
    """Return the rules that lead the control routes of each application to its control application.

    Whatever is mounted at ``PREFIX/control`` is taken for that of ``PREFIX``. Those of the root lead nowhere else. A slash at the
    end changes nothing.
    """
    mounted = {each.prefix.removesuffix(CONTROL_PREFIX) for each in backends if each.prefix.endswith(CONTROL_PREFIX)}
    rules = []
    for base in sorted({"", *mounted}):
        control = f"{base}{CONTROL_PREFIX}"
        written = control.replace("%", "%%")
        # In single quotes, where $ and \ stand for themselves.
        rules += [
            f"http-request replace-path '^{re.escape(base)}({CONTROL_PATHS})/*$' '{written}\\1'",
            f"http-request replace-path '^({re.escape(control)}/.+?)/+$' '\\1'",
            f"http-request set-path {control}/ if {{ path {control} }}",  # the control room
        ]
        if base in mounted:
            rules += [f"http-request redirect location '{written}/' if {{ path {base}/ }} {{ method GET HEAD }}"]
    return rules


def error_json(status: int, message: str) -> str:
    """Return the body of an error in OpenAI's format, with the request's id: a format of HAProxy's, in which % is special."""
    kind = error_type(status)
    text = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status, "request_id": "@"}})
    head, _, tail = text.replace("%", "%%").rpartition("@")
    return head + REQUEST_ID + tail


def answer(
    status: int, message: str, condition: str = "", retry_after_s: int | None = None, rules: str = "http-request return"
) -> str:
    """Return a rule that answers a request at once, in OpenAI's format."""
    body = quoted(error_json(status, message))
    hint = "" if retry_after_s is None else f" hdr Retry-After {retry_after_s}"
    return f"{rules} status {status} content-type application/json lf-string {body}{hint}{condition}"


def quoted(text: str) -> str:
    """Return a word of HAProxy's grammar that stands for the text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def own_errors(limits: Limits) -> list[str]:
    """Return the lines that put HAProxy's own errors into OpenAI's format."""
    messages = {
        400: "this is no valid HTTP request",
        408: f"the request did not arrive as a whole within {limits.request_s} s",
        500: "the proxy failed on this request",
        # Not tried elsewhere: the request may be what ended the replica.
        502: "the replica that had this request ended before it answered; try again",
        503: "no replica took this request; try again",
        504: "the replica that had this request did not answer in time",
    }
    lines = []
    for status, message in messages.items():
        told = 503 if status == 502 else status
        hint = f" hdr Retry-After {RETRY_AFTER_S}" if told == 503 else ""
        body = quoted(error_json(told, message))
        lines.append(f"http-error status {status} content-type application/json lf-string {body}{hint}")
    return lines


def takes_prompts(backend: Backend) -> bool:
    """Whether an application has replicas that say how many prompt tokens they can take: all but the control applications."""
    return not backend.prefix.endswith(CONTROL_PREFIX) and any(not is_backup(line) for line in backend.servers)


def route_choice(backends: Sequence[Backend]) -> list[str]:
    """Return the line that loads ``route.lua`` with the replicas it chooses from."""
    words = []
    for backend in filter(takes_prompts, backends):
        # Sorted, so that every HAProxy has them in the same order, which decides who takes pinned requests.
        names = sorted([name_of(line) for line in backend.servers if not is_backup(line)])
        words.append(" ".join([backend.name, backend.prefix or "/", *names]))
    return [load_rule(words)] if words else []


def load_rule(applications: Sequence[str] = ()) -> str:
    """Return the line that loads ``route.lua``, with the constants of the rule."""
    return f"lua-load {quoted(str(ROUTE))} " + " ".join(f"'{each}'" for each in (CONSTANTS, *applications))


def chosen_server(backend: Backend) -> list[str]:
    """Return the rules by which a request with a prompt goes to the replica that ``route.lua`` chooses."""
    return [
        f"http-request lua.nestedfp_route {backend.name} if METH_POST {{ path -m reg {PROMPTS} }}",
        "use-server %[var(txn.server)] if { var(txn.server) -m found }",
    ]


def listener(bind: str) -> str:
    """Return host:port of a line ``bind`` as this machine reaches it."""
    address = bind.split()[1]
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "*", "0.0.0.0") else address


def write(targets: Targets, limits: Limits) -> str:
    """Return HAProxy's configuration for the targets."""
    frontend = [
        targets.bind,
        *targets.health_rules,
        "unique-id-format %[uuid()]",
        f"http-request set-header {ATTEMPT_HEADER} %[unique-id]",
        # One id for all tries of a request: in the answer, in the body of an error, and in the access logs.
        "http-request set-var(txn.request_id) unique-id",
        # A client's own, unless Ray Serve, which reads this header as UTF-8, would fail on it: that is refused below.
        "http-request set-var(txn.request_id) req.fhdr(x-request-id) if { req.fhdr(x-request-id) -m reg '^[ -~]+$' }",
        answer(
            413,
            f"the body is larger than {limits.body_bytes} bytes; send a shorter prompt or raise http.max_body_bytes",
            f" if {{ req.hdr_val(content-length) gt {limits.body_bytes} }}",
        ),
        answer(
            431,
            f"the headers are larger than {limits.header_bytes} bytes",
            f" if {{ req.hdrs,length gt {limits.header_bytes} }}",
        ),
        f"http-request del-header '^(?!({'|'.join(KNOWN)})$)' -m reg",
        answer(400, "a header holds characters beyond ASCII", r" if { req.hdrs -m reg '[^\t\r\n -~]' }"),
        "http-request set-header x-request-id %[var(txn.request_id)]",
        answer(405, "no such method", f" unless {{ method {METHODS} }}"),
        # A request comes to a replica when it is there as a whole, or fills the buffer: half-sent ones cost no replica anything.
        f"http-request wait-for-body time {limits.request_s}s if METH_POST",
        # A replica's word to HAProxy.
        *[answer(404, "there is no such page", f" if {{ path {each.prefix}/room }}") for each in targets.backends],
        *control_routes(targets.backends),
        f"http-response set-status 429 if {{ status {ELSEWHERE_STATUS} }}",
        # What Ray Serve says in plain text, of a request that never came to this project's server.
        *[
            answer(told, message, f" if {{ status {status} }} !{{ {JSON} }}", retry_after_s, "http-response return")
            for status, told, message, retry_after_s in OF_SERVE
        ],
        "http-after-response set-status 503 if { status 502 }",
        "http-after-response set-header x-request-id %[var(txn.request_id)] if { var(txn.request_id) -m found }",
    ]
    if targets.leaves:
        # Clients that keep their connections open would ask here until the node has ended; their next one leads elsewhere.
        frontend += ["http-after-response set-header connection close"]
    # One that was told to go knows only the replicas of its time. A stream that ends leaves its client's connection open, and
    # the next request on it comes here.
    frontend += [f"use_backend {SUCCESSOR} if {{ stopping }}"]
    for backend in targets.backends:
        name = backend.name
        frontend += [f"acl is_{name} path_beg {backend.prefix}/"]
        if backend.prefix:
            frontend += [f"acl is_{name} path {backend.prefix}"]
    frontend += [f"use_backend {backend.name} if is_{backend.name}" for backend in targets.backends]
    frontend += ["default_backend unavailable"]
    sections = {
        "global": [
            f"stats socket {targets.socket} mode 600 level admin expose-fd listeners",
            "stats timeout 30s",
            *targets.global_lines,
            f"tune.bufsize {limits.buffer_bytes}",
            *route_choice(targets.backends),
        ],
        "defaults": [
            "mode http",
            "timeout connect 2s",
            # A replica whose loop is full of requests answers late, and is neither dead nor hung.
            f"timeout check {limits.check_s}s",
            f"timeout client {limits.idle_client_s}s",
            "timeout server 3600s",
            "timeout tunnel 3600s",
            f"timeout http-request {limits.request_s}s",
            "timeout http-keep-alive 90s",
            "option abortonclose",
            # One that is told to go takes one more request on every connection that a client keeps open, and says that it
            # closes then. Closed at once, as is usual, it would cut off the request that is on its way.
            "option idle-close-on-response",
            "option http-no-delay",
            "option splice-request",
            "option splice-response",
            "option redispatch 1",
            f"retry-on conn-failure {ELSEWHERE_STATUS}",
            f"retries {max(1, limits.tries - 1)}",
            "balance leastconn",
            "load-server-state-from-file global",
            *own_errors(limits),
        ],
        "frontend http_frontend": frontend,
    }
    for backend in targets.backends:
        retry_after_s = RETRY_AFTER_S if backend.servers else ABSENT_RETRY_AFTER_S
        sections[f"backend {backend.name}"] = [
            "http-reuse always",
            "option httpchk GET /-/healthz",
            # By its body: a replica that drains says 503 and goes on taking requests, and may be the last one that this HAProxy
            # knows, until Serve has told of its successor and a new configuration is in force.
            "http-check expect rstring ^(success|DRAINING)$",
            backend.check,
            answer(503, NOBODY, f" if {{ nbsrv({backend.name}) eq 0 }}", retry_after_s),
            *(chosen_server(backend) if takes_prompts(backend) else ()),
            *backend.servers,
        ]
    sections[f"backend {SUCCESSOR}"] = [f"server {SUCCESSOR} {listener(targets.bind)}"]
    sections["backend unavailable"] = [answer(503, NOBODY, retry_after_s=ABSENT_RETRY_AFTER_S)]
    return "".join(f"{head}\n" + "".join(f"    {line}\n" for line in lines if line) for head, lines in sections.items())
