"""``python -m chaos``: starts the service on loopback and injects one fault after another under a steady load.

What each fault cost is written to ``runs/chaos-TIME/chaos.json``, and as a table beside it.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from chaos import campaign
from chaos.fault_cost import FaultResult
from chaos.faults import FAULTS
from deploy.config import ConfigError, load
from loadtest.errors import InputError, ServiceError

CONFIG = Path("deploy") / "configs" / "demo-two-replicas.yaml"


def main(argv: list[str] | None = None) -> int:
    """Run the campaign; return the exit status: 0 good, 1 something hung, was lost or did not recover,
    2 wrong arguments, or a configuration that the service refuses.
    """
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG, help="deployment YAML (default: %(default)s)")
    parser.add_argument("--faults", help=f"comma-separated (default: all): {', '.join(FAULTS)}")
    parser.add_argument("--port", type=int, default=8490)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the report goes to a folder of this one")
    args = parser.parse_args(argv)
    names = list(FAULTS) if args.faults is None else [name.strip() for name in args.faults.split(",") if name.strip()]
    if not names:
        parser.error(f"--faults: expected some of {', '.join(FAULTS)}")
    if unknown := set(names) - set(FAULTS):
        parser.error(f"--faults: unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    if not args.config.is_file():
        parser.error(f"--config: no such file: {args.config}")
    try:
        load(args.config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = args.out / datetime.now(UTC).strftime("chaos-%Y%m%dT%H%M%SZ")
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    return run(args, names, folder)


def run(args: argparse.Namespace, names: list[str], folder: Path) -> int:
    """Start the service and inject; the report grows as it goes."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", flush=True)

    found: list[FaultResult] = []
    whole = True
    try:
        with campaign.running(args.config, args.port, folder, say) as service:
            for fault in campaign.strike_all(service, names, folder, say):
                found.append(fault)
                write(folder, found)
                say(f"  {', '.join(f'{name} {value}' for name, value in asdict(fault).items() if name != 'fault')}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ServiceError, campaign.CampaignError) as error:
        say(f"error: {error}")
        whole = False
    print(write(folder, found))
    return 0 if whole and all(fault.is_good for fault in found) else 1


def write(folder: Path, faults: Sequence[FaultResult]) -> Path:
    """Write chaos.json, a row for each fault; return its path."""
    path = folder / "chaos.json"
    path.write_text(json.dumps({"faults": [asdict(fault) for fault in faults]}, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
