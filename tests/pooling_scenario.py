"""Has an engine make vectors in both precisions; the tests start it as a process.

Standard input: {"engine": {arguments of vllm.LLM}, "task", "prompts", "runs": [{"mode", "extra_kwargs"}]}.
Standard output, one line of JSON: {"runs": [{"vectors": [[...]], "precision": [precision_tokens]} or {"error": "..."}]}.
"""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    """Run the scenario."""
    scenario = json.load(sys.stdin)
    from vllm import LLM, PoolingParams

    from nestedfp.vllm_plugin import control
    from nestedfp.vllm_plugin.frontend import collected, usage_of

    llm = LLM(**{"dtype": "float16", "kv_cache_memory_bytes": 64 << 20, "max_model_len": 512, **scenario["engine"]})
    runs = []
    for run in scenario["runs"]:
        control.set_directive(llm, run["mode"])
        params = PoolingParams(extra_kwargs=run.get("extra_kwargs"))
        try:
            with collected() as counts:
                made = llm.encode(
                    scenario["prompts"], pooling_params=params, pooling_task=scenario["task"], use_tqdm=False
                )
        except Exception as error:
            runs.append({"error": f"{type(error).__name__}: {error}"})
            continue
        runs.append(
            {
                "vectors": [each.outputs.data.tolist() for each in made],
                "precision": [usage_of(counts[each]) for each in counts.ids],
            }
        )
    print(json.dumps({"runs": runs}), flush=True)


if __name__ == "__main__":
    main()
