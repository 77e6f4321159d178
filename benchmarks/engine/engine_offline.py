"""Throughput of whole engines on one GPU: plain vLLM in FP16 and FP8, nestedfp in FP16 and in FP8.

    python -m benchmarks.engine.engine_offline --models llama-8b --lengths 256:512

Dummy weights in the published shapes; each engine is one process, all its batches run in it. Rows:
``model,option,system,batch,input_tokens,output_tokens,tokens_per_s`` (generated tokens over the whole generation, the median of
the repeats: the first may compile). Rows are merged into the result file after every engine, so a run may be cut into pieces.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine import engine_process

RESULT = Path(__file__).parents[1] / "results" / "h100-engine.csv"
COLUMNS = ("model", "option", "system", "batch", "input_tokens", "output_tokens", "tokens_per_s")


def measure(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, run every load."""
    llm = engine_process.start(spec)
    from vllm import SamplingParams

    def seconds(batch: int, tokens_in: int, tokens_out: int) -> float:
        prompts = [engine_process.random_prompt(tokens_in) for _ in range(batch)]
        params = SamplingParams(max_tokens=tokens_out, temperature=0, ignore_eos=True, detokenize=False)
        start_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        assert all(len(output.outputs[0].token_ids) == tokens_out for output in outputs)
        return elapsed_s

    for system in engine_process.modes_of(spec["system"], llm):
        seconds(8, 64, 8)
        for tokens_in, tokens_out in spec["lengths"]:
            for batch in spec["batches"]:
                times_s = [seconds(batch, tokens_in, tokens_out) for _ in range(spec["repeats"])]
                rate = batch * tokens_out / statistics.median(times_s)
                engine_process.row(spec["model"], spec["option"], system, batch, tokens_in, tokens_out, round(rate, 1))


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = engine_process.parser_of("benchmarks.engine.engine_offline", __doc__, "llama-8b,mistral-24b", RESULT)
    parser.add_argument("--systems", default=",".join(engine_process.SYSTEMS))
    parser.add_argument("--batches", default="1,8,32,64,128,256,512")
    parser.add_argument("--option", default="", help="name of what --engine changes, for the rows")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each row")
    parser.add_argument("--lengths", default="256:512,1024:512,32:32", help="input:output tokens, comma-separated")

    def options(args: argparse.Namespace) -> dict[str, Any]:
        return {
            "option": args.option,
            "repeats": args.repeats,
            "lengths": [[int(part) for part in pair.split(":")] for pair in args.lengths.split(",")],
            "batches": sorted(int(batch) for batch in args.batches.split(",")),
        }

    return engine_process.main(parser, argv, measure, COLUMNS, 6, options)


if __name__ == "__main__":
    sys.exit(main())
