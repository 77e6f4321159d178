"""``nestedfp eval MODEL --text FILE``: what fast, mixed and exact answers cost, through the real engine.

Every way to compute is told the same text, token by token: plain vLLM in FP16, which all are compared with; exact; fast; positions
of both kinds in six mixtures; vLLM's own FP8, and both with an FP8 KV cache, where these run. Perplexity with a 95 % interval, KL
divergence and agreement on the most likely token by kind of position, the error of every layer's output, and how greedy answers
part. Takes minutes on a CPU.

With --fp8-layers fast answers of each choice of layers alone, compared with exact ones.
"""

import argparse
import os
from pathlib import Path

from nestedfp.cli.output import UsageError, progress, write_json
from nestedfp.eligible import NAMED_CHOICES, require_fp8_layers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("model", type=Path, help="folder of a plain FP16 or BF16 checkpoint with its tokenizer")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text, .txt or .txt.xz")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text, at most (default: 8192)")
    parser.add_argument("--context", type=int, default=512, metavar="TOKENS", help="of a window (default: 512)")
    parser.add_argument("--answers", type=int, default=32, help="greedy answers to compare (default: 32)")
    parser.add_argument(
        "--fp8-layers",
        action="append",
        default=[],
        metavar="CHOICE",
        help="layers that compute in FP8: all, mlp, or patterns such as '!*.o_proj,!*.layers.0.*'; again for another choice",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")


def run(args: argparse.Namespace) -> int:
    """Print the table; return the exit status."""
    from nestedfp.checkpoint import CheckpointError, read_config, read_weights
    from nestedfp.evaluation.comparison import table

    for name, least in (("tokens", 2), ("context", 2), ("answers", 0)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name}: expected {least} or more, got {getattr(args, name)}")
    config = read_config(args.model)
    tensors = read_weights(args.model)
    if config.get("quantization_config"):
        raise CheckpointError(f"{args.model} is not plain; evaluate the original, or make it: nestedfp restore")
    most = config.get("max_position_embeddings") or args.context + 1
    if args.context >= most:
        raise UsageError(f"--context: expected less than the model's {most} positions, got {args.context}")
    choices = _choices(args.fp8_layers, {name: stored.shape for name, stored in tensors.items()})
    windows = _windows(args, config.get("text_config", config).get("vocab_size"))
    os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from nestedfp.vllm_plugin.evaluation.measure import PASSES, measure, measure_choices

    found = {"schema_version": 1, "model": str(args.model), "text": str(args.text), "context": args.context}
    passes = 1 + len(choices) if choices else PASSES
    with progress(passes * len(windows) * args.context) as done:
        given = (str(args.model), windows, args.answers, done)
        for known in measure_choices(*given, choices) if choices else measure(*given):
            found |= known
            write_json(args.json, found)  # the last engine may fail, or never come up
    print(table(found))
    return 0


def _choices(texts: list[str], shapes: dict[str, tuple[int, ...]]) -> dict[str, str | list[str]]:
    from nestedfp.offline.verdicts import candidates

    choices: dict[str, str | list[str]] = {
        text: text if text in NAMED_CHOICES else [part for part in text.split(",") if part] for text in texts
    }
    for choice in choices.values():
        try:
            require_fp8_layers(choice, candidates(shapes))
        except ValueError as error:
            raise UsageError(str(error)) from None
    return choices


def _windows(args: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from nestedfp.evaluation.text import windows

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(args.model))
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{args.model}: its tokenizer cannot be loaded ({first}); copy tokenizer.json as well"
        ) from None
    encode = lambda text: list(tokenizer(text)["input_ids"])  # noqa: E731
    return windows(args.text, encode, tokenizer.unk_token_id, vocabulary, args.context, args.tokens)
