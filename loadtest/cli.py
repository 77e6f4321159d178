"""Command line of the load test: arguments in, exit status out."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from loadtest.config import POLICIES, LoadtestConfig
from loadtest.errors import InputError, LoadtestError
from loadtest.progress import Progress
from loadtest.session import run_loadtest
from workload.azure import TraceError

EXAMPLES = """\
examples:
  python -m loadtest --config deploy/configs/loadtest.yaml
  python -m loadtest --config FILE --trace AzureLLMInferenceTrace_conv.csv --duration 300
  python -m loadtest --url http://127.0.0.1:8000 --policies fp16,adaptive --rate 2 --slo-ttft-ms 500 --slo-tpot-ms 60
  python -m loadtest --url http://127.0.0.1:8001 --policies plain-vllm-serve --rate 2 --slo-ttft-ms 500 --slo-tpot-ms 60

exit status: 0 done, 1 failed, or no request of a policy was answered (finished runs are still reported), 2 wrong arguments, a
configuration that the service refuses or a trace that cannot give the load, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments; defaults are those of LoadtestConfig."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Replay production arrivals, open loop, once per precision policy, against one running service.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    default = {name: field.default for name, field in LoadtestConfig.model_fields.items()}

    group = parser.add_argument_group("service (one of --config and --url)")
    group.add_argument("--config", dest="service_config", type=Path, metavar="FILE", help="start the service with this")
    group.add_argument("--url", help="use a running service on this machine, e.g. http://127.0.0.1:8000")
    group.add_argument(
        "--allow-host", metavar="HOST", help="with --url: this host of a private network may be the target as well"
    )
    group.add_argument(
        "--admin-key-env", metavar="NAME", help=f"with --url: variable with its key ({default['admin_key_env']})"
    )
    group.add_argument("--admin-key-file", type=Path, metavar="FILE", help="with --url: file with its key, instead")
    group.add_argument("--model", help="name of the model (the first one the service lists)")
    group.add_argument(
        "--start-limit", dest="start_limit_s", type=float, metavar="S", help=f"({default['start_limit_s']:g})"
    )

    group = parser.add_argument_group("load")
    group.add_argument("--trace", type=Path, metavar="CSV", help="Azure trace (a synthetic one of its shape)")
    group.add_argument("--seed", type=int, help=f"({default['seed']})")
    group.add_argument(
        "--start", dest="start_s", type=float, metavar="S", help="of the window (around the worst burst)"
    )
    group.add_argument("--duration", dest="duration_s", type=float, metavar="S", help=f"({default['duration_s']:g})")
    group.add_argument("--rate", dest="rate_rps", type=float, metavar="R", help="mean requests/s (from calibration)")
    group.add_argument(
        "--load-fraction", type=float, metavar="F", help=f"mean rate over FP16 capacity ({default['load_fraction']:g})"
    )
    group.add_argument("--context-tokens", type=int, metavar="N", help="prompt and output together (the service's)")
    group.add_argument("--length-scale", type=float, metavar="F", help="of all lengths (99 %% fit the context)")
    group.add_argument("--max-prompt-tokens", type=int, metavar="N")
    group.add_argument("--max-output-tokens", type=int, metavar="N")
    group.add_argument(
        "--exact-share",
        type=float,
        metavar="F",
        help=f"of the requests, which ask for an exact answer ({default['exact_share']:g})",
    )
    group.add_argument("--token-ids", type=_id_range, metavar="LOW-HIGH", help="ids prompts are drawn from (10-250)")

    group = parser.add_argument_group("runs")
    group.add_argument(
        "--policies",
        type=_names,
        metavar="LIST",
        help=f"({','.join(POLICIES)}); plain, or plain-NAME, alone: a server without controller, run once as it is",
    )
    group.add_argument("--slo-ttft-ms", type=float, metavar="MS", help="(--slo-factor x unloaded)")
    group.add_argument("--slo-tpot-ms", type=float, metavar="MS", help="(--slo-factor x unloaded)")
    group.add_argument("--slo-factor", type=float, metavar="F", help=f"({default['slo_factor']:g})")
    group.add_argument(
        "--probe",
        dest="probe_s",
        type=float,
        metavar="S",
        help=f"each stage of the calibration ({default['probe_s']:g})",
    )
    group.add_argument(
        "--probe-concurrency", type=int, metavar="N", help=f"users at most ({default['probe_concurrency']})"
    )
    group.add_argument("--cooldown", dest="cooldown_s", type=float, metavar="S", help=f"({default['cooldown_s']:g})")
    group.add_argument(
        "--settle-limit",
        dest="settle_limit_s",
        type=float,
        metavar="S",
        help=f"for a directive and empty queues ({default['settle_limit_s']:g})",
    )
    group.add_argument(
        "--drain", dest="drain_s", type=float, metavar="S", help=f"after the last arrival ({default['drain_s']:g})"
    )
    group.add_argument(
        "--request-timeout",
        dest="request_timeout_s",
        type=float,
        metavar="S",
        help=f"({default['request_timeout_s']:g})",
    )
    group.add_argument("--max-requests", type=int, metavar="N", help=f"of one run ({default['max_requests']})")
    group.add_argument("--out", type=Path, metavar="DIR", help=f"({default['out']}/<time>)")
    return parser


def parse_config(arguments: Sequence[str]) -> LoadtestConfig:
    """Arguments -> config; wrong ones end the process with status 2 and a message, as argparse does."""
    parser = build_parser()
    given = vars(parser.parse_args(arguments))
    try:
        return LoadtestConfig.model_validate(given)
    except LoadtestError as error:
        parser.error(str(error))
    except ValidationError as error:
        flags = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}
        parser.error("; ".join(_problem(dict(one), flags) for one in error.errors()))


def _problem(error: dict[str, object], flags: dict[str, str]) -> str:
    location = error["loc"]
    field = str(location[0]) if isinstance(location, tuple) and location else ""
    text = str(error["msg"]).removeprefix("Value error, ")
    return (
        f"{flags.get(field, field)}: {text}" + ("" if "got" in text else f", got {error['input']}") if field else text
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _id_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdigit() and high.isdigit()):
        raise argparse.ArgumentTypeError(f"expected LOW-HIGH, e.g. 10-250, got {text!r}")
    return int(low), int(high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    config = parse_config(sys.argv[1:] if arguments is None else arguments)
    console = Console()
    try:
        with Progress(console) as progress:
            path = run_loadtest(config, progress)
    except (InputError, TraceError) as error:  # as in the other commands
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except LoadtestError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: interrupted", file=sys.stderr)
        return 130
    console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0
