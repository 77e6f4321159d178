"""Command line of the load test: arguments in, exit status out."""

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from loadtest.config import LoadtestConfig
from loadtest.errors import InputError, LoadtestError
from loadtest.progress import Progress
from loadtest.session import run_loadtest
from workload.traces import TraceError

EXAMPLES = """\
examples:
  python -m loadtest --config deploy/configs/loadtest.yaml
  python -m loadtest --config FILE --trace AzureLLMInferenceTrace_conv.csv --duration 300
  python -m loadtest --url http://127.0.0.1:8000 --policies fp16,adaptive --rate 2 --slo-ttft-ms 500 --slo-tpot-ms 60
  python -m loadtest --url http://127.0.0.1:8001 --policies plain-vllm-serve --rate 2 --slo-ttft-ms 500 --slo-tpot-ms 60

exit status: 0 done, 1 failed, or no request of a policy was answered (finished runs are still reported), 2 wrong arguments, a
configuration that the service refuses or a trace that cannot give the load, 130 interrupted
"""


# Option, its place among the groups of the help, and what it says; the type and the default are the field's in LoadtestConfig.
GROUPS: dict[str, dict[str, str]] = {
    "service (one of --config and --url)": {
        "--config": "start the service with this",
        "--url": "use a running service on this machine, e.g. http://127.0.0.1:8000",
        "--allow-host": "with --url: this host of a private network may be the target as well",
        "--admin-key-file": "with --url: file with its key (the variable NESTEDFP_ADMIN_KEY)",
    },
    "load": {
        "--trace": "Azure trace, CSV, or Mooncake trace, .jsonl (a synthetic one of Azure's shape)",
        "--seed": "",
        "--start": "of the window (around the worst burst)",
        "--duration": "",
        "--rate": "mean requests/s (--load-fraction of what the service carries)",
        "--load-fraction": "mean rate over FP16 capacity",
        "--context-tokens": "prompt and output together (the service's)",
        "--length-scale": "of all lengths (99 %% fit the context)",
        "--max-prompt-tokens": "",
        "--max-output-tokens": "",
        "--exact-share": "of the requests, which ask for an exact answer",
        "--session-share": "of the conversations of a .jsonl trace, which tell their name",
    },
    "runs": {
        "--policies": "some of fp16,fp8,adaptive; plain, or plain-NAME, alone: a server without controller, run once as it is",
        "--slo-ttft-ms": "(the service's)",
        "--slo-tpot-ms": "(the service's)",
        "--probe": "the calibration",
        "--probe-users": "at once in it",
        "--cooldown": "",
        "--settle-limit": "for a directive and empty queues",
        "--drain": "after the last arrival",
        "--request-timeout": "",
        "--out": "parent of the report's folder",
    },
}
FIELDS = {"--config": "service_config", "--rate": "rate_rps"}


def field_of(flag: str) -> str:
    """Return the field of an option; of seconds the name tells the unit."""
    name = FIELDS.get(flag, flag.removeprefix("--").replace("-", "_"))
    return name if name in LoadtestConfig.model_fields else f"{name}_s"


def build_parser() -> argparse.ArgumentParser:
    """The arguments; LoadtestConfig checks and converts them, and has the defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Replay production arrivals, open loop, once per precision policy, against one running service.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag, text in options.items():
            field = field_of(flag)
            default = LoadtestConfig.model_fields[field].default
            shown = f"({default:g})" if isinstance(default, int | float) else ""
            group.add_argument(
                flag,
                dest=field,
                type=_names if field == "policies" else str,
                metavar="...",
                help=f"{text} {shown}".strip(),
            )
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
        flags = {field_of(flag): flag for options in GROUPS.values() for flag in options}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    config = parse_config(sys.argv[1:] if arguments is None else arguments)
    try:
        path = run_loadtest(config, Progress())
    except (InputError, TraceError) as error:  # as in the other commands
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except LoadtestError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: interrupted", file=sys.stderr)
        return 130
    print(f"report: {path}")
    return 0
