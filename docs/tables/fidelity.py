"""Fast answers by the layers that compute in FP8, from docs/fidelity/*.json (nestedfp eval --fp8-layers)."""

import json
from pathlib import Path
from typing import Any

from docs.tables.marks import markdown, under

REPORTS = Path(__file__).resolve().parents[1] / "fidelity"


def layer_choices(name: str) -> str:
    """Return loss, divergence and bytes read of each choice."""
    report = json.loads((REPORTS / f"{name}.json").read_text())
    rows = [_row(choice, each) for choice, each in report["classes"].items()]
    said = (
        f"{report['tokens']:,} tokens in windows of {report['context']}; bytes of weights over those of an exact step; "
        f"`{name}.json`."
    )
    headings = ("answers", "perplexity", "more loss, nats", "KL", "same top", "weights read")
    return under(said, markdown(headings, rows))


def _row(choice: str, found: dict[str, Any]) -> list[str]:
    return [
        f"`{choice}`",
        f"{found['perplexity']:.3f}",
        f"{found['loss_increase']:.4f} ± {found['loss_increase_plus_minus']:.4f}",
        f"{found['kl_all']:.5f}",
        f"{found['same_top_all']:.2%}",
        f"{1 - found.get('fp8_weight_share', 0) / 2:.1%}",
    ]


TABLES = {"layer_choices": layer_choices}
