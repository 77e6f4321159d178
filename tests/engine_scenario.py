"""Runs vLLM engines, one after the other, through lists of generations; the tests start it as a process.

Standard input: {"engines": [{arguments of vllm.LLM}], "nested": bool, "runs": [{"mode", "fp8_above_tokens", "prompts",
"max_tokens", "extra_args", "params", "exact", "adapters"}]}; every engine does all runs. "adapters": of each prompt those of a
LoRARequest, or null. "extra_args": of all prompts, or a list with those of each. "exact": the numbers of prompts that are exact in
every step of a run, the others being fast (mixed_steps.py).
Standard output, one line of JSON: {"engines": [[{"tokens": [[...]], "logprobs": [[[best, second]]], "margins": [[...]],
"precision": [precision_tokens], "stats": {...}, "draft_modes": [modes of a drafter's nested layers]...}]]}.

The engine core of a single rank runs in this process: another one, and a third for the worker, would import vLLM anew,
which is most of the time that a start takes. The tests of the service have them all.
"""

import gc
import json
import os
import sys
from contextlib import nullcontext
from typing import Any

from mixed_steps import exact_requests

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def best_two(step) -> list[float]:
    """The log-probabilities of the two best tokens of a step."""
    return sorted((entry.logprob for entry in step.values()), reverse=True)[:2]


def margin(step) -> float:
    """By how much the best token of a step leads the second best, in log-probability."""
    best, second = best_two(step)
    return best - second


def main() -> None:
    """Run the scenario."""
    scenario = json.load(sys.stdin)
    from vllm.distributed import cleanup_dist_env_and_memory

    engines: list[Any] = []
    for engine in scenario["engines"]:
        engines.append(run_engine(engine, scenario["runs"], scenario.get("nested", True)))
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps({"engines": engines}), flush=True)


def run_engine(engine: dict[str, Any], runs: list[dict[str, Any]], nested: bool) -> list[dict[str, Any]]:
    """Start an engine, let it do all ``runs``, and let go of it."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    from nestedfp.steps.step_rule import StepRule
    from nestedfp.vllm_plugin import control
    from nestedfp.vllm_plugin.frontend import collected, usage_of

    if any("exact" in run for run in runs):
        options = engine.get("additional_config", {}).get("nestedfp", {})
        engine = {**engine, "additional_config": {"nestedfp": {**options, "mixed_steps": True}}}
    llm = LLM(**{"dtype": "float16", "kv_cache_memory_bytes": 64 << 20, "max_model_len": 512, **engine})
    draft_modes: set[str] = set()
    if nested and "speculative_config" in engine:
        watch_drafter(llm, draft_modes)
    results: list[dict[str, Any]] = []
    for run in runs:
        draft_modes.clear()
        if nested:
            budget_tokens = llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
            above = run.get("fp8_above_tokens")
            rule = StepRule(fp8_budget_fraction=None if above is None else above / budget_tokens)
            control.set_directive(llm, run.get("mode", "fp16"), rule)
        given = run.get("extra_args")
        params = [
            SamplingParams(
                **{
                    "max_tokens": run.get("max_tokens", 16),
                    "temperature": 0,
                    "ignore_eos": True,
                    "logprobs": 2,
                    "extra_args": extra_args,
                    **run.get("params", {}),
                }
            )
            for extra_args in (given if isinstance(given, list) else [given] * len(run["prompts"]))
        ]
        try:
            with exact_requests(llm, run["exact"]) if "exact" in run else nullcontext([]) as mixed:
                adapters = [given and LoRARequest(*given) for given in run.get("adapters", [])]
                with collected() as counts:
                    outputs = llm.generate(run["prompts"], params, use_tqdm=False, lora_request=adapters or None)
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"})
            continue
        results.append(
            {
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "logprobs": [[best_two(step) for step in output.outputs[0].logprobs] for output in outputs],
                "margins": [[margin(step) for step in output.outputs[0].logprobs] for output in outputs],
                "prompt_tokens": [len(output.prompt_token_ids) for output in outputs],
                "precision": [usage_of(counts[each]) for each in counts.ids] if nested else None,
                "stats": control.stats(llm) if nested else None,
                "draft_modes": sorted(draft_modes),
                "mixed_steps": mixed,
                "step_costs": control.step_costs(llm) if nested else None,
            }
        )
    return results


def watch_drafter(llm: Any, modes: set[str]) -> None:
    """Have the nested layers of a drafter add the mode in which they compute."""
    from nestedfp.kernels import ops

    def watch(worker: Any) -> None:
        runner = worker.model_runner
        model = getattr(getattr(runner, "speculator", None) or getattr(runner, "drafter", None), "model", None)
        for module in model.modules() if model is not None else ():
            if getattr(module, "nestedfp", False):
                module.register_forward_pre_hook(lambda *_: modes.add(ops.get_mode().value))

    llm.collective_rpc(watch)


if __name__ == "__main__":
    main()
