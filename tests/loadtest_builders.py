"""Made-up records, samples and runs for the tests of the load test's report."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from loadtest.report.run_summary import summarise
from loadtest.service.process import Started, started_service
from workload.records import RequestRecord, TimelineSample
from workload.slo import Slo

SLO = Slo(ttft_ms=100.0, tpot_ms=20.0)
FAKE = [sys.executable, str(Path(__file__).with_name("loadtest_fake_service.py"))]


def fake_service(folder: Path, *options: str) -> AbstractContextManager[Started]:
    """The stand-in for the service, for the length of a block."""
    return started_service([*FAKE, *options], folder / "service.log", 30.0, lambda _: None)


def make_record(index: int = 0, **overrides: object) -> RequestRecord:
    fields = {
        "policy": "adaptive",
        "index": index,
        "intended_s": float(index),
        "sent_s": index + 0.002,
        "prompt_tokens": 10,
        "max_tokens": 3,
        "output_tokens": 3,
        "status": 200,
        "ttft_ms": 50.0,
        "tpot_ms": 10.0,
        "latency_ms": 70.0,
        "chunk_ms": (50.0, 60.0, 70.0),
        "precision_tokens": {
            "prompt": {"fp16": 6, "fp8": 0, "cached": {"fp16": 4}},
            "completion": {"fp16": 1, "fp8": 2},
        },
    }
    return RequestRecord.model_validate(fields | overrides)


def failed(index: int) -> RequestRecord:
    nothing = {"ttft_ms": None, "tpot_ms": None, "latency_ms": None, "chunk_ms": (), "precision_tokens": None}
    return make_record(index, sent_s=None, status=None, output_tokens=0, error="not sent", **nothing)


def make_sample(at_s: float, *replicas: tuple[str, int, int, int], waiting: int = 0) -> TimelineSample:
    """Replicas as (id, switches, tokens_fp16, tokens_fp8)."""
    states = [
        {"id": i, "mode": "fp16", "switches": s, "tokens_fp16": a, "tokens_fp8": b, "waiting": waiting}
        for i, s, a, b in replicas
    ]
    status = {"mode": "auto", "epoch": 1, "reason": "r", "replicas": states, "unknown_field": 5}
    return TimelineSample.model_validate({"policy": "adaptive", "at_s": at_s, "status": status})


def make_run(policy: str, met: int, count: int = 1000, **overrides: object):
    records = [
        make_record(i, policy=policy, ttft_ms=50.0 if i < met else 500.0, precision_tokens=None) for i in range(count)
    ]
    return summarise(records, [], SLO, 100.0).model_copy(update=overrides)
