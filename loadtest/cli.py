"""Command line of the load test: arguments in, exit status out."""

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError
from rich.console import Console

from loadtest.config import LoadtestConfig
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


# Option, its place among the groups of the help, and what it says; the type and the default are the field's in LoadtestConfig.
GROUPS: dict[str, dict[str, str]] = {
    "service (one of --config and --url)": {
        "service_config": "start the service with this",
        "url": "use a running service on this machine, e.g. http://127.0.0.1:8000",
        "allow_host": "with --url: this host of a private network may be the target as well",
        "admin_key_env": "with --url: variable with its key",
        "admin_key_file": "with --url: file with its key, instead",
        "model": "name of the model (the first one the service lists)",
        "start_limit_s": "for the service's start",
    },
    "load": {
        "trace": "Azure trace, CSV (a synthetic one of its shape)",
        "seed": "",
        "start_s": "of the window (around the worst burst)",
        "duration_s": "",
        "rate_rps": "mean requests/s (from calibration)",
        "load_fraction": "mean rate over FP16 capacity",
        "context_tokens": "prompt and output together (the service's)",
        "length_scale": "of all lengths (99 %% fit the context)",
        "max_prompt_tokens": "",
        "max_output_tokens": "",
        "exact_share": "of the requests, which ask for an exact answer",
        "token_ids": "LOW-HIGH: ids prompts are drawn from (10-250)",
    },
    "runs": {
        "policies": "some of fp16,fp8,adaptive; plain, or plain-NAME, alone: a server without controller, run once as it is",
        "slo_ttft_ms": "(--slo-factor x unloaded)",
        "slo_tpot_ms": "(--slo-factor x unloaded)",
        "slo_factor": "",
        "probe_s": "each stage of the calibration",
        "probe_concurrency": "users at most",
        "cooldown_s": "",
        "settle_limit_s": "for a directive and empty queues",
        "drain_s": "after the last arrival",
        "request_timeout_s": "",
        "max_requests": "of one run",
        "out": "parent of the report's folder",
    },
}
FLAGS = {"service_config": "--config", "rate_rps": "--rate"}


def flag_of(field: str) -> str:
    """Return the option of a field."""
    return FLAGS.get(field, "--" + field.removesuffix("_s").replace("_", "-"))


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
    types = {"token_ids": _id_range, "policies": _names}
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for field, text in options.items():
            default = LoadtestConfig.model_fields[field].default
            shown = f"({default:g})" if isinstance(default, int | float) else ""
            group.add_argument(
                flag_of(field), dest=field, type=types.get(field, str), metavar="...", help=f"{text} {shown}".strip()
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
        parser.error("; ".join(_problem(dict(one)) for one in error.errors()))


def _problem(error: dict[str, object]) -> str:
    location = error["loc"]
    field = str(location[0]) if isinstance(location, tuple) and location else ""
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{flag_of(field)}: {text}" + ("" if "got" in text else f", got {error['input']}") if field else text


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
