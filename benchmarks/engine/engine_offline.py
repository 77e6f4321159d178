"""Throughput of whole engines on one GPU: plain vLLM in FP16 and FP8, nestedfp in FP16 and in FP8.

    python -m benchmarks.engine.engine_offline --models llama-8b --lengths 256:512

Published shapes with the weights of benchmarks/weights/random_weights.py, or with ``--engine '{"worker_cls": "auto"}'`` vLLM's own
dummy ones; each engine has a process, and all its batches run in it. Rows:
``model,option,system,batch,input_tokens,output_tokens,tokens_per_s`` (generated tokens over the whole generation, the median of
the repeats: the first may compile). They are merged into the result file as they come, so a run may be cut into pieces.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine.engine_shapes import NAMES, config_of
from benchmarks.weights import random_adapters
from benchmarks.weights.random_weights import NESTED_WORKER, PLAIN_WORKER

RESULT = Path(__file__).parents[1] / "results" / "h100-engine.csv"
COLUMNS = ("model", "option", "system", "batch", "input_tokens", "output_tokens", "tokens_per_s")
SYSTEMS: dict[str, dict[str, Any]] = {
    "vllm_fp16": {"worker_cls": PLAIN_WORKER},
    "vllm_fp8": {"worker_cls": PLAIN_WORKER, "quantization": "fp8"},
    "nestedfp": {"worker_cls": NESTED_WORKER, "quantization": "nestedfp"},  # one engine, measured in both modes
}
LARGEST_ID = 30_000  # of a prompt's tokens
RANK = 16  # of adapters


def measure(args: argparse.Namespace, model: str, system: str, comments: list[str]) -> None:
    """In a process of its own: start one engine, run every load, and merge the rows into the result file."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    began_s = time.perf_counter()
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    adapters, served = tempfile.TemporaryDirectory(), []
    for i in range(1, args.adapters + 1):
        tensors = random_adapters.matrices(config_of(model), i, RANK)
        served.append(LoRARequest(f"a{i}", i, random_adapters.save(Path(adapters.name, f"{i}"), tensors, RANK)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of(model)))
        usual = {
            "model": folder,
            "load_format": "dummy",
            "dtype": "float16",
            "skip_tokenizer_init": True,
            "max_model_len": 2048,
            "max_num_seqs": 512,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
            **({"enable_lora": True, "max_loras": len(served), "max_lora_rank": RANK} if served else {}),
        }
        llm = LLM(**{**usual, **SYSTEMS[system], **args.engine})
    cache = llm.llm_engine.vllm_config.cache_config
    kv_tokens = cache.num_gpu_blocks * cache.block_size
    ready = f"{model} {system}: ready after {time.perf_counter() - began_s:.0f} s, KV cache {kv_tokens} tokens"
    print(ready, flush=True)

    def seconds(batch: int, tokens_in: int, tokens_out: int) -> float:
        prompts = [{"prompt_token_ids": random.choices(range(10, LARGEST_ID), k=tokens_in)} for _ in range(batch)]
        params = SamplingParams(max_tokens=tokens_out, temperature=0, ignore_eos=True, detokenize=False)
        asked = [served[i % len(served)] for i in range(batch)] if served else None
        start_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=asked)
        elapsed_s = time.perf_counter() - start_s
        assert all(len(output.outputs[0].token_ids) == tokens_out for output in outputs)
        return elapsed_s

    for name in modes_of(system, llm):
        seconds(8, 64, 8)
        for tokens_in, tokens_out in ((int(part) for part in pair.split(":")) for pair in args.lengths.split(",")):
            for batch in sorted(int(batch) for batch in args.batches.split(",")):
                times_s = [seconds(batch, tokens_in, tokens_out) for _ in range(args.repeats)]
                rate = batch * tokens_out / statistics.median(times_s)
                row = [model, args.option, name, batch, tokens_in, tokens_out, round(rate, 1)]
                print(*row, flush=True)
                results_csv.merge(args.out, COLUMNS, COLUMNS[:6], [row], [*comments, ready])


def modes_of(system: str, llm: Any) -> Iterator[str]:
    """Yield the names of the systems that one engine stands for, with the engine in the right mode."""
    if system != "nestedfp":
        yield system
        return
    from nestedfp.modes import Mode
    from nestedfp.vllm_plugin import control

    for mode in Mode:
        control.set_directive(llm, mode.value)
        yield f"{system}_{mode.value}"


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status: 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.engine_offline", description=__doc__)
    parser.add_argument("--models", default="llama-8b,mistral-24b", help="comma-separated, of " + ", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--batches", default="1,8,32,64,128,256,512")
    parser.add_argument("--option", default="", help="name of what --engine changes, for the rows")
    parser.add_argument("--adapters", type=int, default=0, help="LoRA adapters of rank 16, which requests use in turn")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each row")
    parser.add_argument("--lengths", default="256:512,1024:512,32:32", help="input:output tokens, comma-separated")
    args = parser.parse_args(argv)
    failed = False
    for model, system in itertools.product(args.models.split(","), args.systems.split(",")):
        work = (args, model, system, results_csv.heading(argv))
        process = multiprocessing.get_context("spawn").Process(target=measure, args=work)
        process.start()
        process.join()
        if process.exitcode:
            print(
                f"error: {system} on {model} has ended with exit status {process.exitcode}", file=sys.stderr, flush=True
            )
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
