"""What FP8 mode costs the demonstration model, in loss on held-out text. Plain PyTorch: no kernel, no engine.

    python -m models.evaluate models/fairytales-8m --text fairytales-test.txt.xz --json evaluation.json

Three ways to run the linear layers of the decoder (embeddings, lm_head and norms never change):

    fp16                 the stored FP16 weights
    fp8-weights          every weight w read as E4M3(w * 256) / 256, which is what the upper byte plane holds
    fp8-weights-inputs   the same, and each token's input row x read as E4M3(x / s) * s with s = max|x| / 448

All arithmetic is FP32, so the rows differ by the rounding alone.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from models.arguments import checkpoint, text_file
from models.text import Stream, encode, read_lines
from nestedfp.format import LIMIT, split, upper_to_float
from nestedfp.kernels.activations import quantize_per_token

MODES = ("fp16", "fp8-weights", "fp8-weights-inputs")


def fp8_weight(weight: torch.Tensor) -> torch.Tensor:
    """The weight FP8 mode multiplies by: FP16 in, FP32 out. Elements beyond +-1.75 stay exact, as listed."""
    clamped = weight.clamp(-LIMIT, LIMIT)
    upper, _lower = split(clamped)
    return upper_to_float(upper) + (weight.float() - clamped.float())


def fp8_input(x: torch.Tensor) -> torch.Tensor:
    """x: (..., features) float32, each row rounded to E4M3 with a scale of its own."""
    codes, scale = quantize_per_token(x)
    return codes.float() * scale


def load(path: Path, mode: str) -> nn.Module:
    """The checkpoint in FP32, its decoder's linear layers turned to `mode`."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; expected one of {', '.join(MODES)}")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for linear in model.model.layers.modules():
        if not isinstance(linear, nn.Linear) or mode == "fp16":
            continue
        linear.weight.data = fp8_weight(linear.weight.data.half())  # back to the stored FP16: exact
        if mode == "fp8-weights-inputs":
            linear.register_forward_pre_hook(lambda _module, inputs: (fp8_input(inputs[0]), *inputs[1:]))
    return model


@torch.inference_mode()
def measure(model: nn.Module, stream: Stream, context: int, batch: int = 8) -> dict[str, float]:
    """Loss over the stream in windows of `context` tokens that do not overlap; every token but the first counts."""
    total = 0.0
    inputs, targets = stream.ids[:-1], stream.ids[1:]
    whole = len(targets) // context * context  # what is left over makes one shorter window
    x_parts = [*inputs[:whole].view(-1, context).split(batch), inputs[None, whole:]]
    y_parts = [*targets[:whole].view(-1, context).split(batch), targets[None, whole:]]
    for x, y in zip(x_parts, y_parts, strict=True):
        if y.numel():
            logits = model(input_ids=x, use_cache=False).logits
            total += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
    loss = total / len(targets)
    return {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": total / math.log(2.0) / stream.text_bytes}


def evaluate(path: Path, text: Path, modes: tuple[str, ...] = MODES) -> dict[str, Any]:
    """Measures a checkpoint folder on a text file in the given modes."""
    stream = encode(Tokenizer.from_file(str(path / "tokenizer.json")), read_lines(text))
    context = json.loads((path / "config.json").read_text())["max_position_embeddings"]
    results = {mode: measure(load(path, mode), stream, context) for mode in modes}
    return {"tokens": len(stream.ids) - 1, "text_bytes": stream.text_bytes, "context": context, "modes": results}


def table(report: dict[str, Any]) -> str:
    """The report as a Markdown table."""
    rows = ["| mode | loss (nats/token) | perplexity | bits per byte |", "|---|---|---|---|"]
    for mode, r in report["modes"].items():
        rows.append(f"| {mode} | {r['loss']:.4f} | {r['perplexity']:.2f} | {r['bits_per_byte']:.4f} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Held-out loss of a checkpoint in FP16 and in FP8.")
    parser.add_argument("checkpoint", type=checkpoint)
    parser.add_argument(
        "--text", type=text_file, required=True, help="held-out text, .txt or .txt.xz, one paragraph a line"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    report = evaluate(args.checkpoint, args.text, tuple(args.modes))
    print(
        f"{report['tokens']:,} tokens, {report['text_bytes']:,} bytes, context {report['context']}\n\n{table(report)}"
    )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
