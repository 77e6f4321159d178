"""Builders for the simulator's tests: a table with round numbers, and small loads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controller.config import ControllerConfig
from simulator.engine.cost_table import EngineLimits, EngineTable, FitError, StepTimeModel, write_table
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest
from workload.traces import Arrival

EXACT = FitError(observations=1, median_relative=0.0, max_relative=0.0)
FP16 = StepTimeModel(
    fixed_ms=10.0, per_token_us=1.0, knee_tokens=256, over_knee_us=20.0, per_decode_us=20.0, per_kv_token_ns=40.0
)
FP8 = StepTimeModel(
    fixed_ms=6.0, per_token_us=1.0, knee_tokens=256, over_knee_us=12.0, per_decode_us=14.0, per_kv_token_ns=40.0
)


def make_table(fp16: StepTimeModel = FP16, fp8: StepTimeModel = FP8, **limits: int) -> EngineTable:
    """An engine with a budget of 2048 tokens, 64 sequences and 100 000 KV tokens, but for ``limits``."""
    usual = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "kv_tokens": 100_000, "max_model_tokens": 8192}
    return EngineTable(
        model="test", gpu="none", command="none", sources=(),
        engine=EngineLimits(**{**usual, **limits}),
        fp16=fp16, fp8=fp8, fit_fp16=EXACT, fit_fp8=EXACT,
    )  # fmt: skip


def make_arrivals(*sizes: tuple[float, int, int]) -> tuple[Arrival, ...]:
    """Arrivals from (at_s, prompt, output)."""
    return tuple(Arrival(*size) for size in sizes)


def make_requests(*sizes: tuple[float, int, int]) -> list[SimRequest]:
    """Requests from (at_s, prompt, output)."""
    return [SimRequest(index, *size) for index, size in enumerate(sizes)]


def drive(engine: Engine, requests: Sequence[SimRequest]) -> Engine:
    """Give an engine requests as they come, and let it answer all."""
    for request in requests:
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(1e9)
    return engine


def policy_config(name: str, **section: Any) -> ControllerConfig:
    """A controller with the usual values but for the policy."""
    return ControllerConfig.model_validate({"policy": {"name": name}, **section})


def table_file(folder: Path) -> Path:
    """The table of ``make_table`` as the command lines take it."""
    path = folder / "table.json"
    write_table(path, make_table())
    return path


def exit_status(main: Callable[[list[str]], int], *words: object) -> int:
    """Run a command line in this process; its exit status, whichever way it ends."""
    try:
        return main([str(word) for word in words])
    except SystemExit as error:
        return int(error.code or 0)
