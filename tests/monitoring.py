"""The alert rules and the dashboard that go with the service, as their tests read them."""

import json
import re
from typing import Any

import yaml
from processes import ROOT

MONITORING = ROOT / "k8s" / "monitoring"


def rule_groups() -> dict[str, Any]:
    """The alert rules as Prometheus' own rule file."""
    return {"groups": yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"]}


def queries() -> dict[str, str]:
    """The expression of every alert and of every query of the dashboard, by its name."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    found = {f"{each['title']}: {t['legendFormat']}": t["expr"] for each in panels for t in each.get("targets", ())}
    return found | {rule["alert"]: rule["expr"] for group in rule_groups()["groups"] for rule in group["rules"]}


def names(expression: str) -> set[str]:
    """The names of our and of vLLM's series in an expression."""
    return set(re.findall(r"\b(?:nestedfp_|vllm:)\w+", expression))
