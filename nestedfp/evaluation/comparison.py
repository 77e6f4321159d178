"""How far the answers of one way to compute are from those of another, position by position. Pure."""

from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import torch

CONFIDENCE = 1.96  # standard errors on each side: 95 %


@dataclass(frozen=True, slots=True)
class Mix:
    """Which positions of a window are fast.

    Attributes:
        share: probability of a run of positions to be fast.
        run_tokens: positions that are fast or exact together.
        prompt: the first half of the window: "mixed" like the rest, "exact", or "fast".
    """

    name: str
    share: float
    run_tokens: int = 1
    prompt: str = "mixed"

    def mask(self, tokens: int, generator: torch.Generator) -> torch.Tensor:
        """Draw one: [tokens] bool, True: fast."""
        runs = torch.rand(-(-tokens // self.run_tokens), generator=generator) < self.share
        drawn = runs.repeat_interleave(self.run_tokens)[:tokens]
        if self.prompt != "mixed":
            drawn[: tokens // 2] = self.prompt == "fast"
        return drawn


MIXES = (
    Mix("a quarter fast", 0.25),
    Mix("half fast", 0.5),
    Mix("half fast, in runs of 64", 0.5, 64),
    Mix("three quarters fast", 0.75),
    Mix("exact prompt, then half fast", 0.5, prompt="exact"),
    Mix("fast prompt, then exact", 0.0, prompt="fast"),
)


class Comparison:
    """Collects windows: loss, and distance from the reference, of each position."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, fast: torch.Tensor) -> None:
        """Take a window.

        Args:
            logits, reference: [positions, vocabulary] float32, of what is compared and of what it is compared with; on one device,
                as the others.
            tokens: [positions] int64, which came next.
            fast: [positions] bool, the position was computed in FP8.
        """
        ours, theirs = logits.log_softmax(-1), reference.log_softmax(-1)
        losses = [-each.gather(-1, tokens[:, None]).squeeze(-1) for each in (ours, theirs)]
        divergence = (theirs.exp() * (theirs - ours)).sum(-1).clamp_min(0)
        same = ours.argmax(-1) == theirs.argmax(-1)
        self._parts.append(torch.stack([*losses, divergence, same.float(), fast.float()]).double().cpu())

    def as_json(self) -> dict[str, Any]:
        """Return the means of all positions, of the fast and of the exact ones; nats per token, 95 % confidence."""
        loss, reference, divergence, same, fast = torch.cat(self._parts, 1)
        spread = CONFIDENCE / sqrt(len(loss))
        increase = loss - reference  # paired: the text's own spread cancels out
        interval = [float(loss.mean() + sign * spread * loss.std()) for sign in (-1, 1)]
        return {
            "tokens": len(loss),
            "fast_share": float(fast.mean()),
            "loss": float(loss.mean()),
            "perplexity": exp(loss.mean()),
            "perplexity_interval": [exp(bound) for bound in interval],
            "loss_increase": float(increase.mean()),
            "loss_increase_plus_minus": float(spread * increase.std()),
            **{
                f"{name}_{kind}": float(values[chosen].mean()) if chosen.any() else None
                for name, values in (("kl", divergence), ("same_top", same))
                for kind, chosen in (("all", fast >= 0), ("fast", fast == 1), ("exact", fast == 0))
            },
        }


def divergence_of(answers: list[list[int]], reference: list[list[int]]) -> dict[str, Any]:
    """Return how greedy answers part from those of the reference: share that are the same, and the mean common prefix."""
    prefixes = [
        next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
        for ours, theirs in zip(answers, reference, strict=True)
    ]
    return {
        "answers": len(answers),
        "answer_tokens": len(answers[0]),
        "identical_share": sum(map(list.__eq__, answers, reference)) / len(answers),
        "common_prefix_tokens": sum(prefixes) / len(prefixes),
    }


def table(found: dict[str, Any]) -> str:
    """Return the report for a terminal."""
    head = f"{'answers':30} {'fast':>5} {'perplexity':>10} {'95 %':>15} {'more loss, nats':>17}"
    lines = [head + "".join(f" {name:>8}" for name in ("KL", "KL fast", "KL exact", "same top"))]
    for name, each in found["classes"].items():
        if "unavailable" in each:
            lines.append(f"{name:30} not here: {each['unavailable']}")
            continue
        low, high = each["perplexity_interval"]
        kls = " ".join(
            f"{each[key]:8.5f}" if each[key] is not None else f"{'-':>8}" for key in ("kl_all", "kl_fast", "kl_exact")
        )
        more = f"{each['loss_increase']:.4f} +-{each['loss_increase_plus_minus']:.4f}"
        lines.append(
            f"{name:30} {each['fast_share']:5.0%} {each['perplexity']:10.3f} {f'{low:.2f}-{high:.2f}':>15} {more:>17} {kls} "
            f"{each['same_top_all']:8.2%}"
        )
    for name, each in found["greedy"].items():
        lines.append(
            f"greedy, {name}: {each['identical_share']:.0%} of {each['answers']} answers"
            f" of {each['answer_tokens']} tokens are the same,"
            f" {each['common_prefix_tokens']:.1f} tokens until they part"
        )
    if errors := found["layer_errors"]:
        worst = sorted(errors, key=errors.__getitem__, reverse=True)
        lines.append(f"layers' error in FP8, relative: {errors[worst[-1]]:.2%} to {errors[worst[0]]:.2%} ({worst[0]})")
    return "\n".join(lines)
