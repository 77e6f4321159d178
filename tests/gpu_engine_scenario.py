"""One vLLM engine on a GPU, with its core in this process, through a list of jobs; the tests start it as a process.

Standard input: {"engine": {arguments of vllm.LLM}, "nested": bool, "jobs": [{"kind": "sample" | "score" | "greedy" |
"flip", ...}]}. Standard output, last line: {"jobs": [one result each], "step_costs": the report of
StepCosts, "mixed_steps": [[exact requests, fast requests] of each]}.
"""

import json
import os
import sys

from mixed_steps import exact_requests

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one place to flip modes from and to ask for memory


def used_bytes() -> dict[str, int]:
    """Return what this process holds: torch's live tensors, and everything on the device."""
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {"allocated": torch.cuda.memory_allocated(), "device": total - free}


class Jobs:
    """The kinds of jobs."""

    def __init__(self, llm, nested: bool) -> None:
        self.llm = llm
        self.nested = nested
        self.mixed_steps = []

    def mode(self, mode: str) -> None:
        """Put a directive in force."""
        if self.nested:
            from nestedfp.vllm_plugin import control

            control.set_directive(self.llm, mode)

    def generate(self, prompts, exact=None, **params):
        """Generate from texts or token ids; ``exact``: numbers of those that are exact in every step (mixed_steps.py)."""
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in prompts]
        params = SamplingParams(ignore_eos=True, **params)
        if exact is None:
            return self.llm.generate(prompts, params, use_tqdm=False)
        with exact_requests(self.llm, exact) as mixed:
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
        self.mixed_steps += mixed
        return outputs

    def sample(self, prompts, max_tokens):
        """Return texts as token ids: the prompts and a random continuation."""
        outputs = self.generate(prompts, max_tokens=max_tokens, temperature=1.0, seed=7)
        return [list(o.prompt_token_ids) + list(o.outputs[0].token_ids) for o in outputs]

    def score(self, texts, mode="fp16", exact=None):
        """Return the log-probability of every token of every text but the first, all computed as prompts."""
        self.mode(mode)
        outputs = self.generate(texts, exact, max_tokens=1, temperature=0, prompt_logprobs=0)
        return [
            [step[token].logprob for token, step in zip(o.prompt_token_ids, o.prompt_logprobs, strict=True) if step]
            for o in outputs
        ]

    def greedy(self, prompts, max_tokens, mode="fp16", exact=None):
        """Return greedy tokens and by how much each leads the second best."""
        self.mode(mode)
        outputs = self.generate(prompts, exact, max_tokens=max_tokens, temperature=0, logprobs=2)

        def margin(step) -> float:
            best, second = sorted((entry.logprob for entry in step.values()), reverse=True)[:2]
            return best - second

        return {
            "tokens": [list(o.outputs[0].token_ids) for o in outputs],
            "margins": [[margin(step) for step in o.outputs[0].logprobs] for o in outputs],
        }

    def flip(self, prompts, max_tokens, rounds):
        """Alternate the precision with every step, in several equal rounds; return tokens, memory and steps."""
        from nestedfp.modes import Mode
        from nestedfp.vllm_plugin import control
        from nestedfp.vllm_plugin.scheduling import scheduler

        count = 0

        def alternate(*_, **__):
            nonlocal count
            count += 1
            return (Mode.FP8 if count % 2 else Mode.FP16), "alternate"

        before = control.stats(self.llm)
        original, scheduler.choose = scheduler.choose, alternate
        tokens, memory = [], []
        for _ in range(rounds):
            count = 0
            outputs = self.generate(prompts, max_tokens=max_tokens, temperature=0)
            tokens.append([list(o.outputs[0].token_ids) for o in outputs])
            memory.append(used_bytes())
        scheduler.choose = original
        after = control.stats(self.llm)
        counters = {key: after[key] - before[key] for key in ("switches", "steps_fp16", "steps_fp8")}
        return {"tokens": tokens, "memory": memory, **counters}


def main() -> None:
    """Run the scenario."""
    scenario = json.load(sys.stdin)
    from vllm import LLM

    nested = scenario["nested"]
    # Without a prefix cache: no job may find what another one computed in the other precision.
    defaults = {"dtype": "float16", "kv_cache_memory_bytes": 256 << 20, "max_model_len": 1024}
    options = {"additional_config": {"nestedfp": {"mixed_steps": True}}} if nested else {}
    llm = LLM(**{**defaults, "enable_prefix_caching": False, **options, **scenario["engine"]})
    jobs = Jobs(llm, nested)
    results = [getattr(jobs, job.pop("kind"))(**job) for job in scenario["jobs"]]
    costs = llm.collective_rpc("nestedfp_step_costs")[0] if nested else None
    print(json.dumps({"jobs": results, "step_costs": costs, "mixed_steps": jobs.mixed_steps}), flush=True)


if __name__ == "__main__":
    main()
