"""The report: chaos.json for machines, chaos.md for readers, and whether it is good. Pure but for ``write``."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from chaos.fault_cost import FaultResult
from chaos.soak import SoakResult

COLUMNS = ("fault", "detect s", "recover s", "in flight", "failed", "hung", "lost", "notes")


def as_json(faults: Sequence[FaultResult], soak: SoakResult | None) -> str:
    """Return chaos.json; ``soak`` is null when there was none."""
    return json.dumps(
        {"faults": [asdict(fault) for fault in faults], "soak": None if soak is None else asdict(soak)}, indent=1
    )


def as_markdown(faults: Sequence[FaultResult], soak: SoakResult | None, soak_notes: str = "") -> str:
    """Return the same as a table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for fault in faults:
        cells = ["-" if value is None else str(value) for value in asdict(fault).values()]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    if soak is not None:
        lines += [
            "",
            f"Soak: {soak.minutes:g} minutes, resident memory {soak.rss_growth_pct:+.2f} %, descriptors {soak.fd_growth:+d}; "
            f"{soak_notes}.",
        ]
    return "\n".join(lines) + "\n"


def is_good(faults: Sequence[FaultResult]) -> bool:
    """Whether everything recovered, and no request hung or was lost."""
    return all(fault.recover_s is not None and not fault.hung and not fault.lost for fault in faults)


def write(folder: Path, faults: Sequence[FaultResult], soak: SoakResult | None, soak_notes: str) -> None:
    """Write both into ``folder``; called after every fault, so that a campaign that is cut short leaves what it has."""
    (folder / "chaos.json").write_text(as_json(faults, soak) + "\n")
    (folder / "chaos.md").write_text(as_markdown(faults, soak, soak_notes))
