"""OpenTelemetry traces of requests, by what Ray Serve and vLLM have for it, to the collector that ``tracing.otlp_endpoint`` names.

Three things come together in a replica, in one trace that a client's W3C header ``traceparent`` may have begun:

    Ray Serve makes a span of each request. It takes up the client's header, decides on sampling, and exports through the
    processors that this module gives it.

    This service adds what it knows of the request when it has left: the fields of its line in the access log.

    vLLM makes a span ``llm_request``, a child of the first: the time in the queue, to the first token, in prefill and decode.
"""

import importlib
import os
import secrets
import socket
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace

from deploy.access.access_log import Access, fields
from deploy.config import ConfigError, TracingSection

SERVICE = "nestedfp"
ENDPOINT_ENV, PROTOCOL_ENV = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
SDK = "opentelemetry.sdk.trace"
EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
CONNECT_TIMEOUT_S = 1.0


def environment(config: TracingSection) -> dict[str, str]:
    """Return what a replica's environment must have before Ray Serve and vLLM are imported there; nothing without an endpoint."""
    if config.otlp_endpoint is None:
        return {}
    return {
        "OTEL_SERVICE_NAME": SERVICE,
        ENDPOINT_ENV: config.otlp_endpoint,  # of vLLM's processes, and of ``processors``
        PROTOCOL_ENV: config.protocol,
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": f"{__name__}:processors",
        "RAY_SERVE_TRACING_SAMPLING_RATIO": str(config.sample_share),
    }


def processors() -> list[Any]:
    """Return the span processors of a replica; called by Ray Serve, in the environment that ``environment`` makes.

    The exporter reads the endpoint there.
    """
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = importlib.import_module(EXPORTERS[os.environ[PROTOCOL_ENV]]).OTLPSpanExporter()
    return [BatchSpanProcessor(exporter)]


def check(config: TracingSection) -> str | None:
    """Look whether somebody takes the traces; return a warning where nobody does.

    Raises:
        ConfigError: a library is missing.
    """
    if config.otlp_endpoint is None:
        return None
    for name in (SDK, EXPORTERS[config.protocol]):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"tracing.otlp_endpoint: needs opentelemetry-sdk and opentelemetry-exporter-otlp ({error}); run make setup"
            ) from None
    url = urlsplit(config.otlp_endpoint)
    try:
        socket.create_connection((url.hostname or "", url.port or 443), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"tracing.otlp_endpoint: nobody listens at {config.otlp_endpoint} ({error}); traces are lost until somebody does"
    return None


def tell(access: Access) -> None:
    """Add to the present request's span what the access log says of it."""
    span = trace.get_current_span()
    if span.is_recording():
        known = {name: value for name, value in fields(access).items() if value is not None and name != "time"}
        span.set_attributes({f"{SERVICE}.{name}": value for name, value in known.items()})


def below_this_span(scope: Any) -> Any:
    """Return an ASGI scope whose ``traceparent`` makes the engine's span a child of the present one.

    Where the present request is not sampled, neither is what the engine does for it.
    """
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        value = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    else:
        value = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
    headers = [header for header in scope["headers"] if header[0] != b"traceparent"]
    return {**scope, "headers": [*headers, (b"traceparent", value.encode())]}
