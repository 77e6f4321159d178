"""Which request headers come through: those that this service reads, whatever Ray Serve and vLLM read besides."""

import warnings

import pytest
from haproxy_calls import ask
from haproxy_run import error_of

from deploy.haproxy.haproxy_config import KNOWN

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.serve._private.constants import (
        SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
        SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
        SERVE_MULTIPLEXED_MODEL_ID,
        SERVE_SESSION_ID,
    )
    from vllm.entrypoints.openai.completion.api_router import ENDPOINT_LOAD_METRICS_FORMAT_HEADER_LABEL

# That Ray Serve, vLLM or uvicorn reads, and this service does not offer.
FOREIGN = {
    SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER: "?1",
    SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER: "0.1",
    SERVE_MULTIPLEXED_MODEL_ID: "other",
    SERVE_MULTIPLEXED_MODEL_ID.replace("_", "-"): "other",
    SERVE_SESSION_ID: "mine",
    SERVE_SESSION_ID.replace("-", "_"): "mine",
    ENDPOINT_LOAD_METRICS_FORMAT_HEADER_LABEL: "json",
    "x-data-parallel-rank": "1",
    "x-body-truncated": "1/2",
    "x-forwarded-for": "8.8.8.8",
    "forwarded": "for=8.8.8.8",
    "baggage": "a=b",
    "origin": "https://a.example",
    "user-agent": "\xe9",
}
OFFERED = {
    "authorization": "Bearer k",
    "content-type": "application/json",
    "x-nestedfp-precision": "fp16",
    "x-nestedfp-queue-deadline-s": "2",
    "x-vllm-priority": "1",
    "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "x-request-id": "mine",
}


@pytest.mark.parametrize("spelled", [str.lower, str.title, str.upper])
def test_haproxy_passes_on_the_headers_that_this_service_reads_and_no_other(served, spelled):
    asked = {spelled(name): value for name, value in {**FOREIGN, **OFFERED}.items()}
    status, headers, body = ask(served.port, "/v1", "POST", b"{}", asked)
    assert (status, body, headers["x-request-id"]) == (200, b"app", "mine")
    ((_, seen),) = served.app.seen
    assert seen.items() >= OFFERED.items()
    assert set(seen) <= set(KNOWN)
    assert seen["x-nestedfp-attempt"] != "mine"


@pytest.mark.parametrize("name", ["x-request-id", "traceparent", "tracestate", "authorization", "x-nestedfp-precision"])
@pytest.mark.parametrize("value", ["\xe9", "a\xff", "\x80b"])
def test_bytes_beyond_ascii_in_a_header_that_is_read_get_400(served, name, value):
    status, _, body = ask(served.port, "/v1", headers={name: value})
    assert (status, error_of(body)["message"]) == (400, "a header holds characters beyond ASCII")
    assert served.app.seen == []
