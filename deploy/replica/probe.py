"""The last questions before a replica may serve: does the engine answer in both precisions, and in the one it was told?"""

import logging
import time
import uuid
from typing import Any

from vllm import SamplingParams

from nestedfp.modes import Mode
from nestedfp.vllm_plugin import frontend

log = logging.getLogger(__name__)

TOKENS = 4


class ProbeError(RuntimeError):
    """The engine does not answer as it must; the message says in which precision and what came."""


async def probe_modes(engine: Any, fp16_only: bool) -> dict[str, float]:
    """Ask for a few tokens under a directive of each precision; leaves FP16 in force.

    Returns how long each answer took, in seconds, by precision. An engine without an FP8 mode must answer in FP16 under FP8.

    Raises:
        ProbeError: no answer, or tokens of another precision than was directed.
    """
    took_s = {}
    try:
        for mode in Mode:
            await engine.call("nestedfp_set_directive", {"mode": mode.value, "epoch": 0})
            expected = Mode.FP16 if fp16_only else mode
            began_s = time.monotonic()
            await _ask(engine, mode, expected)
            took_s[mode.value] = time.monotonic() - began_s
    finally:
        await engine.call("nestedfp_set_directive", {"mode": Mode.FP16.value, "epoch": 0})
    log.info("both precisions answer: %s", ", ".join(f"{mode} {s * 1e3:.0f} ms" for mode, s in took_s.items()))
    return took_s


async def _ask(engine: Any, mode: Mode, expected: Mode) -> None:
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)
    with frontend.collected() as counts:
        async for _ in engine.client.generate(f"A probe of {mode.value}", params, f"probe-{uuid.uuid4().hex}"):
            pass
    if not counts:
        raise ProbeError(f"the engine did not answer a probe in {mode.value}")
    found = frontend.total(counts.values())
    completion = {Mode.FP16: found.completion_fp16, Mode.FP8: found.completion_fp8}
    if completion[expected] != TOKENS or sum(completion.values()) != TOKENS:
        raise ProbeError(
            f"directed to {mode.value}, the engine answered a probe with {found.completion_fp16} tokens in fp16 and "
            f"{found.completion_fp8} in fp8; expected {TOKENS} in {expected.value}"
        )
