"""Fast answers by the layers that compute in FP8, from docs/fidelity/*.json (nestedfp eval --fp8-layers)."""

import json
from pathlib import Path
from typing import Any

from docs.tables.marks import markdown, under

REPORTS = Path(__file__).resolve().parents[1] / "fidelity"


def layer_choices(name: str) -> str:
    """Return loss, divergence and decode time of each choice."""
    report = json.loads((REPORTS / f"{name}.json").read_text())
    rows = [_row(choice, each) for choice, each in report["classes"].items()]
    said = (
        f"{report['tokens']:,} tokens in windows of {report['context']}; bytes of weights and processor time over those of an "
        f"exact decode step; `{name}.json`."
    )
    headings = ("answers", "perplexity", "more loss, nats", "KL", "same top", "weights read", "decode step")
    return under(said, markdown(headings, rows))


def _row(choice: str, found: dict[str, Any]) -> list[str]:
    ms = found.get("decode_ms")
    return [
        f"`{choice}`",
        f"{found['perplexity']:.3f}",
        f"{found['loss_increase']:.4f} ± {found['loss_increase_plus_minus']:.4f}",
        f"{found['kl_all']:.5f}",
        f"{found['same_top_all']:.2%}",
        f"{1 - found.get('fp8_weight_share', 0) / 2:.1%}",
        f"{ms['fp8'] / ms['fp16']:.2f}" if ms else "",
    ]


TABLES = {"layer_choices": layer_choices}
