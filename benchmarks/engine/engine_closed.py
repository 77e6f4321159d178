"""Tokens per second of an engine alone under a closed loop: whenever a request ends, the next one comes. No HTTP, no text.

The streams do not march in step, as clients do not: the first answers are of all lengths, so that in every step some requests
end and others begin. ``vllm.LLM.generate`` on many prompts is another load: as many at a time, but all of them begin together.
benchmarks.http.http_path runs it as a process.
"""

import argparse
import json
import time
from typing import Any

from benchmarks.engine import engine_process
from nestedfp.vllm_plugin.options import OPTIONS_KEY


def tokens_per_s(
    llm: Any, streams: int, prompt_tokens: int, output_tokens: int, warm_s: float, window_s: float
) -> tuple[float, int]:
    """Return the tokens per second, and the requests that ended, in a window after a warm-up.

    Args:
        llm: a ``vllm.LLM``, of ``streams`` sequences at least.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    vocabulary = engine.vllm_config.model_config.get_vocab_size()
    sent = 0

    def send(tokens: int) -> None:
        nonlocal sent
        params = SamplingParams(
            max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        sent += 1
        engine.add_request(f"closed-{id(llm)}-{sent}", engine_process.random_prompt(prompt_tokens, vocabulary), params)

    for stream in range(streams):
        send(1 + output_tokens * stream // streams)
    began_s = time.perf_counter()
    opened_s, tokens, ended = None, 0, 0
    while (now_s := time.perf_counter()) < began_s + warm_s + window_s:
        if opened_s is None and now_s >= began_s + warm_s:
            opened_s, tokens, ended = now_s, 0, 0
        for output in engine.step():
            tokens += len(output.outputs[0].token_ids)
            if output.finished:
                ended += 1
                send(output_tokens)
    assert opened_s is not None, "the window comes after the warm-up"
    rate = tokens / (now_s - opened_s)
    engine.abort_request([f"closed-{id(llm)}-{number}" for number in range(1, sent + 1)], internal=False)
    while engine.has_unfinished_requests():
        engine.step()
    return rate, ended


def measure(spec: dict[str, Any]) -> None:
    """Start the engine, run the loop in each precision that is asked for: a row of mode, tokens per second, requests."""
    llm = engine_process.start(spec, **spec["limits"], additional_config={OPTIONS_KEY: spec["plugin"]})
    for system in engine_process.modes_of("nestedfp", llm):
        if (mode := system.removeprefix("nestedfp_")) in spec["modes"]:
            rate, ended = tokens_per_s(llm, *spec["loop"])
            engine_process.row(mode, round(rate, 1), ended)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.engine_closed", description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads, help="as benchmarks.engine.engine_process writes it")
    measure(parser.parse_args().spec)
