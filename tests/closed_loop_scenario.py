"""Runs the closed loop of the benchmarks over a whole engine; the test starts it as a process.

Standard input: {"streams", "prompt_tokens", "output_tokens", "warm_s", "window_s"}, the arguments of ``tokens_per_s``.
Standard output, one line of JSON: {"tokens_per_s", "ended", "unfinished": [requests in the engine at each step of the loop],
"sent": [output tokens asked for], "left": requests in it afterwards, "took_s"}.
"""

import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")


def main() -> None:
    """Run the scenario."""
    given = json.load(sys.stdin)
    from processes import ROOT
    from vllm import LLM

    from benchmarks.engine.engine_closed import tokens_per_s

    model = str(ROOT / "models" / "fairytales-8m")
    llm = LLM(model, quantization="nestedfp", dtype="float16", enforce_eager=True, max_model_len=64,
              max_num_seqs=given["streams"], kv_cache_memory_bytes=16 << 20)  # fmt: skip
    engine = llm.llm_engine
    unfinished, sent = [], []
    step, add_request, abort_request = engine.step, engine.add_request, engine.abort_request
    looping = True

    def stepped():
        if looping:
            unfinished.append(engine.get_num_unfinished_requests())
        return step()

    def added(name, prompt, params):
        sent.append(params.max_tokens)
        return add_request(name, prompt, params)

    def aborted(names, **options):
        nonlocal looping
        looping = False
        return abort_request(names, **options)

    engine.step, engine.add_request, engine.abort_request = stepped, added, aborted
    began_s = time.perf_counter()
    rate, ended = tokens_per_s(llm, **given)
    took_s = time.perf_counter() - began_s
    found = {"tokens_per_s": rate, "ended": ended, "took_s": took_s, "unfinished": unfinished, "sent": sent}
    print(json.dumps({**found, "left": engine.get_num_unfinished_requests()}))


if __name__ == "__main__":
    main()
