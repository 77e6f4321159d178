"""``python -m chaos``: starts the service on loopback and injects one fault after another under a steady load.

What each fault cost is written to ``runs/chaos-TIME/chaos.json``, and as a table beside it.
"""

import argparse
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from chaos import campaign, report
from chaos.fault_cost import FaultResult
from chaos.faults import FAULTS
from chaos.soak import SoakResult
from deploy.config import ConfigError, load
from loadtest.errors import InputError, ServiceError

CONFIG = Path("deploy") / "configs" / "chaos.yaml"


def main(argv: list[str] | None = None) -> int:
    """Run the campaign; return the exit status: 0 good, 1 something hung, was lost or did not recover,
    2 wrong arguments, or a configuration that the service refuses.
    """
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG, help="deployment YAML (default: %(default)s)")
    parser.add_argument("--faults", help=f"comma-separated (default: all): {', '.join(FAULTS)}; '' for none")
    parser.add_argument("--malformed", type=int, default=10_000, help="malformed requests (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="of the soak at the end; 0: none (default: %(default)g)"
    )
    parser.add_argument("--port", type=int, default=8490)
    parser.add_argument("--start-limit", type=float, default=900.0, help="seconds (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the report goes to a folder of this one")
    args = parser.parse_args(argv)
    names = list(FAULTS) if args.faults is None else [name.strip() for name in args.faults.split(",") if name.strip()]
    if unknown := set(names) - set(FAULTS):
        parser.error(f"--faults: unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    if not args.config.is_file():
        parser.error(f"--config: no such file: {args.config}")
    if args.malformed < 1 or args.minutes < 0 or 0 < args.minutes < 1:
        parser.error("--malformed: at least 1; --minutes: 0, or at least 1")
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
    """Start the service, inject and soak; the report grows as it goes."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", flush=True)

    found: list[FaultResult] = []
    soak: SoakResult | None = None
    notes = ""
    whole = True
    try:
        with campaign.running(args.config, args.port, folder, args.start_limit, say) as service:
            try:
                for fault in campaign.strike_all(service, names, args.malformed, folder, say):
                    found.append(fault)
                    report.write(folder, found, soak, notes)
                    say(
                        f"  detected after {fault.detect_s} s, recovered after {fault.recover_s} s; in flight "
                        f"{fault.in_flight}, failed {fault.failed}, hung {fault.hung}, lost {fault.lost}; {fault.notes}"
                    )
                if args.minutes:
                    say("soak")
                    soak, notes = campaign.soaked(service, args.minutes, folder)
            except campaign.CampaignError as error:
                say(f"error: {error}")
                whole = False
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ServiceError, campaign.CampaignError, ValueError) as error:
        say(f"error: {error}")
        whole = False
    report.write(folder, found, soak, notes)
    print((folder / "chaos.md").read_text())
    print(folder / "chaos.json")
    return 0 if whole and report.is_good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
