"""A collector of OpenTelemetry traces: takes them by gRPC or HTTP as the protocol says, decodes and keeps them."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class Span:
    """One span; ids in hexadecimal digits."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What has come."""

    endpoint: str
    spans: list[Span] = field(default_factory=list)

    def take(self, request: Any) -> None:
        for group in request.resource_spans:
            service = _values(group.resource.attributes).get("service.name", "")
            for scope in group.scope_spans:
                self.spans.extend(
                    Span(
                        span.name,
                        service,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _values(span.attributes),
                    )
                    for span in scope.spans
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.contextmanager
def running(protocol: str = "grpc") -> Iterator[Collector]:
    """A collector on a free port of loopback, for ``grpc`` or ``http/protobuf``."""
    with _grpc() if protocol == "grpc" else _http() as collector:
        yield collector


@contextlib.contextmanager
def _grpc() -> Iterator[Collector]:
    collector = Collector("")

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(1).wait()


@contextlib.contextmanager
def _http() -> Iterator[Collector]:
    collector = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if found:
                collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if found else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
