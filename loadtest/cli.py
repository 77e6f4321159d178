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


FLAGS = {"service_config": "--config", "rate_rps": "--rate"}


def flag_of(field: str) -> str:
    """Return the option of a field; that of seconds does not tell the unit."""
    return FLAGS.get(field) or f"--{field.removesuffix('_s').replace('_', '-')}"


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
    for name, field in LoadtestConfig.model_fields.items():
        shown = f"({field.default:g})" if isinstance(field.default, int | float) else ""
        text = f"{field.description or ''} {shown}".strip().replace("%", "%%")
        parser.add_argument(
            flag_of(name), dest=name, type=_names if name == "policies" else str, metavar="...", help=text
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
        parser.error("; ".join(_problem(one["loc"], one["msg"], one["input"]) for one in error.errors()))


def _problem(location: tuple[int | str, ...], message: str, given: object) -> str:
    text = message.removeprefix("Value error, ")
    if not location:
        return text
    return f"{flag_of(str(location[0]))}: {text}" + ("" if "got" in text else f", got {given}")


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
