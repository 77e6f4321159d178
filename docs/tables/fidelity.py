"""What fast and mixed answers cost, and by the layers that compute in FP8, from docs/fidelity/*.json (nestedfp eval)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.tables.marks import markdown, under

REPORTS = Path(__file__).resolve().parents[1] / "fidelity"


def eval_classes(name: str) -> str:
    """Return loss and divergence of each way to compute."""
    return _table(name, "positions in FP8", lambda found: f"{found['fast_share']:.0%}")


def layer_choices(name: str) -> str:
    """Return the same of each choice of layers, and the bytes read, of weights, over those of an exact step."""
    return _table(name, "weights read", lambda found: f"{1 - found.get('fp8_weight_share', 0) / 2:.1%}")


def _table(name: str, last_heading: str, last: Callable[[dict[str, Any]], str]) -> str:
    report = json.loads((REPORTS / f"{name}.json").read_text())
    rows = [
        [
            f"`{choice}`",
            f"{found['perplexity']:.3f}",
            f"{found['loss_increase']:.4f} ± {found['loss_increase_plus_minus']:.4f}",
            f"{found['kl_all']:.5f}",
            f"{found['same_top_all']:.2%}",
            last(found),
        ]
        for choice, found in report["classes"].items()
        if "unavailable" not in found
    ]
    said = f"{report['tokens']:,} tokens in windows of {report['context']:,}; {report['machine']}; [report](fidelity/{name}.json)."
    headings = ("answers", "perplexity", "more loss, nats", "KL, nats", "same top", last_heading)
    return under(said, markdown(headings, rows))


TABLES = {"eval_classes": eval_classes, "layer_choices": layer_choices}
