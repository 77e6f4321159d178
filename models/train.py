"""Trains the demonstration model: tokenizer and weights from one text file, in minutes on one GPU.

    python -m models.train --train fairytales-train.txt.xz --test fairytales-test.txt.xz --out models/fairytales-8m

The corpus is under 3 M tokens, so the model sees it dozens of times and would learn it by heart: dropout and weight
decay push back, the loss on the held-out text is watched, and the best checkpoint seen is written, not the last.
The learning rate follows one cosine over `--steps`, or over `--minutes` where the time runs out first; a run that is
not cut short by the time draws the same batches from the same seed.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from models.arguments import text_file
from models.text import encode, read_lines
from models.tokenizer import save_tokenizer, train_tokenizer
from nestedfp.format import LIMIT

BETAS = (0.9, 0.95)
MAX_GRAD_NORM = 1.0


def build_model(args: argparse.Namespace, vocab_size: int, end_id: int) -> LlamaForCausalLM:
    """An untrained Llama with dropout on the embedding and on both branches of every layer (Llama itself has none)."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim,
        max_position_embeddings=args.context,
        tie_word_embeddings=True,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    model = LlamaForCausalLM(config)

    def drop(module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return F.dropout(output, args.dropout, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)
    return model


def batches(ids: torch.Tensor, batch: int, context: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless (batch, context + 1) windows of the stream (on its device): every epoch a new offset and a new order."""
    draw = random.Random(seed)
    span = torch.arange(context + 1, device=ids.device)
    count = (len(ids) - 1) // context - 1  # windows an epoch, whatever the offset
    if count < batch:
        raise ValueError(f"the text has {len(ids)} tokens: too few for a batch of {batch} windows of {context}")
    while True:
        offset = draw.randrange(context)
        order = list(range(count))
        draw.shuffle(order)
        for first in range(0, count - batch + 1, batch):
            starts = torch.tensor([offset + i * context for i in order[first : first + batch]], device=ids.device)
            yield ids[starts[:, None] + span]


def loss_of(model: nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy in nats of a (batch, context + 1) window."""
    logits = model(input_ids=window[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, windows: torch.Tensor, batch: int, precision: AbstractContextManager[Any]) -> float:
    """Mean loss over (n, context + 1) windows, dropout off."""
    model.eval()
    with precision:
        total = sum(loss_of(model, part).item() * len(part) for part in windows.split(batch))
    model.train()
    return total / len(windows)


def learning_rate(progress: float, step: int, args: argparse.Namespace) -> float:
    """Linear warm-up over `args.warmup` steps, then a cosine to zero; `progress` runs from 0 to 1."""
    return args.lr * min(1.0, (step + 1) / args.warmup) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def fit(
    model: LlamaForCausalLM, train_ids: torch.Tensor, test_ids: torch.Tensor, args: argparse.Namespace
) -> dict[str, Any]:
    """Trains in place and leaves the best weights in `model`. Returns the history."""
    device = torch.device(args.device)
    context = min(args.context, len(test_ids) - 1)
    windows = test_ids[: (len(test_ids) - 1) // context * context + 1].unfold(0, context + 1, context).to(device)
    source = batches(train_ids.to(device), args.batch, args.context, args.seed)
    model.to(device).train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=BETAS, fused=device.type == "cuda")
    runner = torch.compile(model, dynamic=False) if args.compile else model
    precision = torch.autocast(device.type, torch.bfloat16, enabled=args.bf16)

    best = math.inf
    best_step = stale = step = 0
    weights: dict[str, torch.Tensor] = {}
    history: list[dict[str, float]] = []
    started = last = time.monotonic()
    running = torch.zeros((), device=device)
    while True:
        elapsed = time.monotonic() - started if step else 0.0
        progress = max(step / args.steps, elapsed / (60.0 * args.minutes))
        if step and (step % args.eval_every == 0 or progress >= 1.0):
            since = (step - 1) % args.eval_every + 1
            train_loss = running.item() / since
            now = time.monotonic()
            rate = since * args.batch * args.context / (now - last)
            # The uncompiled model: the held-out batches have shapes of their own.
            loss = held_out_loss(model, windows, args.batch, precision)
            mark = "*" if loss < best else ""
            print(
                f"step {step:5d}  epoch {step * args.batch * args.context / len(train_ids):5.1f}"
                f"  train {train_loss:.4f}  held-out {loss:.4f}{mark:1s}  {rate:,.0f} tokens/s  {elapsed:.0f} s",
                flush=True,
            )
            history.append({"step": step, "train": round(train_loss, 4), "held_out": round(loss, 4)})
            if loss < best:
                best, best_step, stale = loss, step, 0
                weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            else:
                stale += 1
            running.zero_()
            last = time.monotonic()
        if progress >= 1.0 or stale >= args.patience:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, step, args)
        with precision:
            loss_now = loss_of(runner, next(source))
        loss_now.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss_now.detach()
        step += 1
        if step == 1:  # which also compiled: the budget and the speeds do not count it
            loss_now.item()
            started = last = time.monotonic()
    if not weights:
        raise RuntimeError(f"the held-out loss was never finite in {step} steps; lower --lr (now {args.lr})")
    model.cpu().load_state_dict(weights)
    model.eval()
    return {
        "best_held_out": best,
        "best_step": best_step,
        "steps": step,
        "seconds": round(time.monotonic() - started, 1),
        "history": history,
    }


def fitting_layers(model: nn.Module) -> tuple[int, int, float]:
    """(linear layers whose weights all fit the byte planes, linear layers, largest |w|); embeddings are not counted."""
    largest = [
        m.weight.abs().max().item() for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"
    ]
    return sum(value <= LIMIT for value in largest), len(largest), max(largest)


def save_model(model: LlamaForCausalLM, out: Path, end_id: int) -> None:
    """Writes config.json, generation_config.json and model.safetensors in FP16."""
    overflow = [n for n, p in model.named_parameters() if not p.half().isfinite().all()]
    if overflow:
        raise ValueError(f"these parameters do not fit FP16: {', '.join(overflow)}")
    model.half()
    model.config.dtype = torch.float16
    model.generation_config = GenerationConfig(
        bos_token_id=end_id, eos_token_id=end_id, pad_token_id=end_id, do_sample=True, temperature=0.7, top_p=0.9
    )
    model.save_pretrained(out)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demonstration model.")
    parser.add_argument(
        "--train", type=text_file, required=True, help="text to learn, .txt or .txt.xz, one paragraph a line"
    )
    parser.add_argument("--test", type=text_file, required=True, help="held-out text, the same form")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=3.0, help="time budget; the schedule shrinks to it")
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument(
        "--patience", type=int, default=8, help="held-out evaluations without a new best before stopping"
    )
    parser.add_argument("--eval-every", type=int, default=100, help="steps between held-out evaluations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True, help="bfloat16 autocast")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False, help="use torch.compile")
    parser.add_argument("--batch", type=int, default=32, help="windows a step")
    parser.add_argument("--context", type=int, default=1024, help="tokens a window; the model's longest context")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=896)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    logging.disable_progress_bar()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    train_lines = read_lines(args.train)
    tokenizer = train_tokenizer(train_lines, args.vocab)
    train, test = encode(tokenizer, train_lines), encode(tokenizer, read_lines(args.test))
    end_id = int(train.ids[0])
    model = build_model(args, tokenizer.get_vocab_size(), end_id)
    parameters = model.num_parameters()
    print(
        f"{parameters:,} parameters; vocabulary {tokenizer.get_vocab_size()}; {len(train.ids):,} tokens to learn,"
        f" {len(test.ids):,} held out, {train.text_bytes / len(train.ids):.2f} bytes a token; {args.device}",
        flush=True,
    )
    report = fit(model, train.ids, test.ids, args)
    fit_count, linears, largest = fitting_layers(model)
    print(
        f"best held-out loss {report['best_held_out']:.4f} at step {report['best_step']}, after {report['seconds']} s"
    )
    print(f"{fit_count} of {linears} linear layers have every |w| <= {LIMIT}; the largest is {largest:.3f}")
    save_model(model, args.out, end_id)
    save_tokenizer(tokenizer, args.out, args.context)
    settings = {key: value for key, value in vars(args).items() if key not in ("train", "test", "out")}
    facts = {
        "parameters": parameters,
        "train_tokens": len(train.ids),
        "held_out_tokens": len(test.ids),
        "linear_layers": linears,
        "linear_layers_that_fit": fit_count,
        "largest_linear_weight": round(largest, 4),
    }
    (args.out / "training.json").write_text(json.dumps({**facts, **report, "settings": settings}, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
