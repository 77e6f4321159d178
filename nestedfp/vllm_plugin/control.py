"""Direct an engine from Python: for offline use of ``vllm.LLM`` and for benchmarks.

A service is directed by its controller instead; see deploy/agent/agent.py.
"""

import itertools
from dataclasses import asdict
from typing import Any

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

_epochs = itertools.count(1)


def set_directive(llm: Any, mode: DirectiveMode | str, rule: StepRule | None = None) -> None:
    """Put a directive in force from the next step on.

    Args:
        llm: a ``vllm.LLM``.
        mode: ``"fp16"``, ``"fp8"`` or ``"auto"`` (the engine chooses for each step by ``rule``).
        rule: thresholds of ``auto``.

    Raises:
        ValueError: for an unknown mode.
    """
    rule = rule or StepRule()
    directive = {
        "mode": DirectiveMode(mode).value,
        "epoch": next(_epochs),
        "rule": asdict(rule),
    }
    _call(llm, "nestedfp_set_directive", directive)


def stats(llm: Any) -> dict[str, Any]:
    """Return the engine's counters; see ``PrecisionMixin.nestedfp_stats``."""
    result: dict[str, Any] = _call(llm, "nestedfp_stats")
    return result


def step_costs(llm: Any) -> list[list[float]] | None:
    """Return ``[tokens, fp16_ms, fp8_ms]`` by step size as measured at start-up; None: not measured."""
    result: list[list[float]] | None = _call(llm, "nestedfp_step_costs")
    return result


def _call(llm: Any, utility: str, *args: Any) -> Any:
    client = llm.llm_engine.engine_core
    if hasattr(client, "call_utility"):
        return client.call_utility(utility, *args)
    return getattr(client.engine_core, utility)(*args)  # VLLM_ENABLE_V1_MULTIPROCESSING=0: the core is in this process
