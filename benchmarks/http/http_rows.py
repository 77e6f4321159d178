"""Rows of the HTTP benchmark's result files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.http.http_load import HttpLoad
from benchmarks.http.http_measure import Measurement

MEASURED = (
    "ttft_p99_ms",
    "tpot_p99_ms",
    "engine_cpu_us_per_token",
    "cpu_us_per_token_by_process",
    "tokens_per_event",
    "requests",
    "errors",
)
COLUMNS = (
    "system",
    "streams",
    "tokens_per_s",
    "ttft_p50_ms",
    "tpot_p50_ms",
    "path_cpu_us_per_token",
    "engine",
    "scenario",
    "replicas",
    "rate_per_s",
    *MEASURED,
)
KEYS = ("system", "streams", "engine", "scenario", "replicas", "rate_per_s")
GPU_COLUMNS = (
    "system",
    "model",
    "streams",
    "tokens_per_s",
    "mode",
    "scenario",
    "replicas",
    "rate_per_s",
    "ttft_p50_ms",
    "tpot_p50_ms",
    "path_cpu_us_per_token",
    *MEASURED,
)
GPU_KEYS = ("system", "model", "streams", "mode", "scenario", "replicas", "rate_per_s")


def shown(value: float | None, digits: int = 2) -> str:
    """Return a number for a row; empty: not measured."""
    return "" if value is None else f"{value:.{digits}f}"


def values(measurement: Measurement, scenario: HttpLoad) -> dict[str, Any]:
    """Return all that a row may hold of a measurement."""
    found = measurement.figures
    return {
        "streams": scenario.streams,
        "rate_per_s": f"{scenario.rate_per_s:g}",
        "scenario": scenario.name,
        "tokens_per_s": shown(found.tokens_per_s, 1),
        "ttft_p50_ms": shown(found.ttft_p50_ms),
        "ttft_p99_ms": shown(found.ttft_p99_ms),
        "tpot_p50_ms": shown(found.tpot_p50_ms),
        "tpot_p99_ms": shown(found.tpot_p99_ms),
        "path_cpu_us_per_token": shown(measurement.path_us_per_token, 1),
        "engine_cpu_us_per_token": shown(measurement.us_per_token(measurement.spent_s.get("engine", 0.0)), 1),
        "cpu_us_per_token_by_process": measurement.by_role(),
        "tokens_per_event": shown(found.tokens_per_event, 3),
        "requests": found.requests,
        "errors": found.errors,
    }


def save(path: Path, columns: Sequence[str], keys: Sequence[str], row: dict[str, Any], comments: Sequence[str]) -> None:
    """Write one row into a result file and show it; a row with the same keys goes."""
    full = [str(row.get(column, "")) for column in columns]
    print(" ".join(f"{column}={value}" for column, value in zip(columns, full, strict=True) if value), flush=True)
    results_csv.merge(path, columns, keys, [full], comments)
