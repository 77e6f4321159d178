"""Traces without an engine: configuration, environment, export to a collector, what a span says of a request."""

import subprocess
import sys

import otlp_collector
import pytest
from live_service import demo_config
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import ROOT
from pydantic import ValidationError
from ray_nodes import free_port

from deploy.access.access_log import Access
from deploy.config import DeployConfig, TracingSection
from deploy.replica import tracing
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts


def config(**section):
    return DeployConfig.model_validate({**demo_config(), "tracing": section})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"otlp_endpoint": "collector:4317"}, "expected a URL with a port"),
        ({"otlp_endpoint": "http://collector"}, "expected a URL with a port"),
        ({"otlp_endpoint": "http://collector:port"}, "expected a URL with a port"),
        ({"otlp_endpoint": "ftp://collector:4317"}, "expected a URL with a port"),
        ({"otlp_endpoint": "http://collector:4318/v1/traces"}, "does not fit the protocol grpc"),
        ({"otlp_endpoint": "http://c:4318", "protocol": "http/protobuf"}, "does not fit the protocol http/protobuf"),
        ({"sample_share": 1.5}, "less than or equal to 1"),
        ({"endpoint": "http://collector:4317"}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_section_is_refused_before_anything_starts(section, message):
    with pytest.raises(ValidationError, match=message):
        config(**section)


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_without_an_endpoint_nothing_of_it_reaches_a_replica():
    from deploy.app import deployment_options, engine_kwargs

    off, on = config(), config(otlp_endpoint="http://127.0.0.1:4317", sample_share=0.25)
    assert "otlp_traces_endpoint" not in engine_kwargs(off, "cpu")
    assert engine_kwargs(on, "cpu")["otlp_traces_endpoint"] == "http://127.0.0.1:4317"
    nothing, told = (deployment_options(each)["ray_actor_options"]["runtime_env"]["env_vars"] for each in (off, on))
    assert not [name for name in nothing if name.startswith("OTEL_") or "TRACING" in name]
    assert told["RAY_SERVE_TRACING_SAMPLING_RATIO"] == "0.25"
    module, _, function = told["RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH"].partition(":")
    assert getattr(sys.modules[module], function) is tracing.processors


def test_nobody_at_the_endpoint_is_a_warning_and_not_an_end():
    with otlp_collector.running() as collector:
        assert tracing.check(TracingSection(otlp_endpoint=collector.endpoint)) is None
    endpoint = f"http://127.0.0.1:{free_port()}"
    assert "nobody listens" in tracing.check(TracingSection(otlp_endpoint=endpoint))
    assert tracing.check(TracingSection()) is None


SPAN = """
from opentelemetry.sdk.trace import TracerProvider
from deploy.replica import tracing
provider = TracerProvider()
for processor in tracing.processors():
    provider.add_span_processor(processor)
provider.get_tracer("t").start_span("one").end()
provider.shutdown()
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_ray_serves_spans_reach_a_collector_by_either_protocol(protocol):
    """In a process of its own: the environment is read there as in a replica."""
    with otlp_collector.running(protocol) as collector:
        section = TracingSection(otlp_endpoint=collector.endpoint, protocol=protocol)
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **tracing.environment(section)}
        done = subprocess.run(
            [sys.executable, "-c", SPAN], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        (span,) = collector.spans
    assert (span.name, span.service) == ("one", "nestedfp")


@pytest.fixture
def exported():
    """(tracer, the spans that have ended)"""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("t"), exporter.get_finished_spans


def test_a_span_says_what_the_access_log_says_and_no_more(exported):
    tracer, ended = exported
    access = Access(
        1.0, "r-1", None, "m" * 500, "ok", 200, "auto", "mixed", TokenCounts(3, 0, 1, 0, 4, 5), 12.34, 56.78
    )
    with tracer.start_as_current_span("request"):
        tracing.tell(access)
    (span,) = ended()
    assert span.attributes["nestedfp.id"] == "r-1"
    assert span.attributes["nestedfp.completion_fp8_tokens"] == 5
    assert span.attributes["nestedfp.status"] == 200
    assert len(span.attributes["nestedfp.model"]) < 200
    assert "nestedfp.key" not in span.attributes, "there was none"
    tracing.tell(access)  # no span: nothing happens


def test_the_engines_span_is_a_child_of_the_requests_and_is_not_sampled_where_that_is_not(exported):
    tracer, _ = exported
    scope = {"type": "http", "headers": [(b"traceparent", b"the client's"), (b"tracestate", b"a=b")]}
    with tracer.start_as_current_span("request") as span:
        below = tracing.below_this_span(scope)
    context = span.get_span_context()
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    assert below["headers"] == [(b"tracestate", b"a=b"), (b"traceparent", parent.encode())]
    assert not trace.get_current_span().get_span_context().is_valid
    (name, value) = tracing.below_this_span({"headers": []})["headers"][0]
    assert (name, value[-3:], len(value)) == (b"traceparent", b"-00", 55)
