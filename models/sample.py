"""Prints what the demonstration model says to a few prompts.

python -m models.sample models/fairytales-8m --prompt "Once upon a time there was a fox who"
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from models.arguments import checkpoint

PROMPTS = (
    "Once upon a time there was a fox who",
    "The old witch opened the door and said,",
    "There lived a king who had three daughters.",
)


@torch.inference_mode()
def continuation(path: Path, prompt: str, tokens: int, seed: int) -> str:
    """At most `tokens` tokens after `prompt` (sent as a chat message), drawn as the checkpoint's settings say."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    chat = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False)
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt").input_ids
    torch.manual_seed(seed)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Sample from a checkpoint.")
    parser.add_argument("checkpoint", type=checkpoint)
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    for prompt in args.prompt or PROMPTS:
        print(f"> {prompt}\n{continuation(args.checkpoint, prompt, args.tokens, args.seed)}\n")


if __name__ == "__main__":
    main()
