"""Throughput of whole engines on one GPU: plain vLLM in FP16 and FP8, nestedfp in FP16, in FP8 and flipping every step.

    python -m benchmarks.engine --models llama-8b --out benchmarks/results/h100-engine.csv

Dummy weights in the published shapes; each engine is one process, all its batches run in it. Rows:
``model,system,batch,input_tokens,output_tokens,tokens_per_s`` (generated tokens over the whole generation).
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "h100-engine.csv"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
# Published shapes: hidden, intermediate, layers, heads, KV heads, head size, vocabulary.
SHAPES = {
    "llama-8b": (4096, 14336, 32, 32, 8, 128, 128256),
    "mistral-24b": (5120, 32768, 40, 32, 8, 128, 131072),
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "vllm_fp16": {},
    "vllm_fp8": {"quantization": "fp8"},
    "nestedfp": {"quantization": "nestedfp"},
}


def config_of(model: str) -> dict[str, Any]:
    """Return the Hugging Face configuration of a published shape."""
    hidden, intermediate, layers, heads, kv_heads, head, vocabulary = SHAPES[model]
    return {
        **LLAMA,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def run_engine(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, run every load, print a JSON line for each."""
    # The engine core in this process: one place to flip modes from, and the same for every system.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING")
    began_s = time.perf_counter()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=spec["model_dir"],
        load_format="dummy",
        dtype="float16",
        skip_tokenizer_init=True,
        max_model_len=2048,
        max_num_seqs=512,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
        **SYSTEMS[spec["system"]],
    )
    cache = llm.llm_engine.vllm_config.cache_config
    ready_s, kv_tokens = time.perf_counter() - began_s, cache.num_gpu_blocks * cache.block_size
    print(
        f"INFO {spec['model']} {spec['system']}: ready after {ready_s:.0f} s, KV cache {kv_tokens} tokens", flush=True
    )

    def generate(batch: int, tokens_in: int, tokens_out: int) -> float:
        prompts = [{"prompt_token_ids": [random.randrange(10, 30000) for _ in range(tokens_in)]} for _ in range(batch)]
        params = SamplingParams(max_tokens=tokens_out, temperature=0, ignore_eos=True, detokenize=False)
        start_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start_s
        assert all(len(output.outputs[0].token_ids) == tokens_out for output in outputs)
        return batch * tokens_out / seconds

    for system in modes_of(spec["system"], llm):
        generate(8, 64, 8)
        for batch, tokens_in, tokens_out in spec["loads"]:
            rate = generate(batch, tokens_in, tokens_out)
            row = [spec["model"], system, batch, tokens_in, tokens_out, round(rate, 1)]
            print("ROW " + json.dumps(row), flush=True)


def modes_of(system: str, llm: Any) -> Any:
    """Yield the names of the systems that one engine stands for, with the engine in the right mode."""
    if system != "nestedfp":
        yield system
        return
    from nestedfp.modes import Mode
    from nestedfp.step_rule import StepChoice
    from nestedfp.vllm_plugin import control, scheduler

    for mode in ("fp16", "fp8"):
        control.set_directive(llm, mode)
        yield f"nestedfp_{mode}"
    count = 0

    def alternate(*_: Any) -> StepChoice:
        nonlocal count
        count += 1
        return StepChoice(Mode.FP8 if count % 2 else Mode.FP16, "alternate")

    scheduler.choose = alternate  # type: ignore[assignment]
    yield "nestedfp_alternate"


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--models", default="llama-8b,mistral-24b", help="comma-separated, of " + ", ".join(SHAPES))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--batches", default="1,8,32,64,128,256,512")
    parser.add_argument("--lengths", default="256:256", help="input:output tokens, comma-separated")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.spec:
        run_engine(json.loads(args.spec))
        return 0
    lengths = [tuple(int(part) for part in pair.split(":")) for pair in args.lengths.split(",")]
    loads = [(int(b), i, o) for i, o in lengths for b in args.batches.split(",")]
    rows, notes = [], []
    for model in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config_of(model)))
            for system in args.systems.split(","):
                spec = json.dumps({"model": model, "model_dir": folder, "system": system, "loads": loads})
                process = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.engine", "--spec", spec], stdout=subprocess.PIPE, text=True
                )
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("ROW "):
                        rows.append(json.loads(line[4:]))
                        print(*rows[-1], flush=True)
                    elif line.startswith("INFO "):
                        notes.append(line[5:].strip())
                        print(notes[-1], flush=True)
                if process.wait():
                    print(f"error: {system} on {model} ended with {process.returncode}", file=sys.stderr)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        choices = f"--models {args.models} --systems {args.systems} --batches {args.batches} --lengths {args.lengths}"
        file.write(f"# {datetime.now(UTC):%Y-%m-%d} python -m benchmarks.engine {choices}\n")
        file.write(f"# {gpu_description()}\n")
        file.writelines(f"# {note}\n" for note in notes)
        writer = csv.writer(file)
        writer.writerow(["model", "system", "batch", "input_tokens", "output_tokens", "tokens_per_s"])
        writer.writerows(rows)
    return 0


def gpu_description() -> str:
    """Return GPU, clocks and versions for the header of the CSV."""
    import torch

    query = ["nvidia-smi", "--query-gpu=name,clocks.sm,clocks.mem,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return f"{gpu}; torch {torch.__version__}, CUDA {torch.version.cuda}"


if __name__ == "__main__":
    sys.exit(main())
