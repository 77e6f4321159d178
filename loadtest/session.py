"""One whole load test: service, load, calibration, one run a policy, report. Wiring only."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from loadtest.calibrate import carried_rps
from loadtest.config import LoadtestConfig
from loadtest.errors import InputError, LoadtestError
from loadtest.progress import Progress
from loadtest.report.run_summary import RunSummary, summarise
from loadtest.report.verdict import verdict
from loadtest.report.write import LoadSummary, Summary, report_lines, write_report
from loadtest.runner import run_policy
from loadtest.service.admin import ServiceClient
from loadtest.service.process import ADMIN_KEY_ENV, serve_command, started_service
from loadtest.service.target import addresses
from workload.records import Policy, RequestRecord, TimelineSample
from workload.shape import (
    Lengths,
    Selection,
    cut_window,
    fit_lengths,
    most_bursty_start_s,
    peak_rate_rps,
    select_at_rate,
)
from workload.slo import Slo
from workload.strict_yaml import YamlFileError, read_yaml_file
from workload.synthetic import synthetic_trace
from workload.traces import Arrival, read_trace

DEFAULT_CONTEXT_TOKENS = 2048
SYNTHETIC_S = 3600.0
START_LIMIT_S = 900.0  # of the service


def run_loadtest(config: LoadtestConfig, progress: Progress, key: str | None = None) -> Path:
    """Run everything; returns the path of the report. Finished runs are reported even when a later one fails.

    The key is that of a running service; None: the one that the configuration, or the environment, names.

    Raises:
        InputError: what was given cannot be used.
        LoadtestError: what was asked for could not be measured; also where a policy ran and none of its requests was answered.
    """
    trace = read_trace(config.trace) if config.trace else synthetic_trace(config.seed, SYNTHETIC_S)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} before the start"
    )
    started = datetime.now(UTC)
    key = key if key or config.url is None else _key(config)
    with (
        _results_folder(config.out / started.strftime("%Y%m%dT%H%M%S.%fZ"), progress) as out_dir,
        _service(config, key, out_dir, progress) as service,
    ):
        model, served_context = service.model()
        context = config.context_tokens or served_context or DEFAULT_CONTEXT_TOKENS
        service_slo = service.slo()
        lengths = Lengths(context, config.length_scale, config.max_prompt_tokens, config.max_output_tokens)
        fitted, scale = fit_lengths(trace, lengths)
        slo = _slo(config, service_slo)
        carried, rate_rps = None, config.rate_rps
        if rate_rps is None:
            carried = carried_rps(service, config, model, typical_requests(config, fitted), out_dir, progress)
            rate_rps = config.load_fraction * carried
        shaped = select_at_rate(fitted, config.start_s, config.duration_s, rate_rps, config.seed)
        load = _load_summary(config, context, scale, shaped)
        progress.note(
            f"{load.requests} requests over {load.duration_s:g} s, mean {load.mean_rate_rps:.2f}/s, busiest 20 s "
            f"{load.peak_rate_rps:.2f}/s; SLO TTFT {slo.ttft_ms:.0f} ms, TPOT {slo.tpot_ms:.1f} ms"
        )
        records: dict[Policy, Sequence[RequestRecord]] = {}
        timeline: list[TimelineSample] = []
        runs: list[RunSummary] = []

        def report(incomplete: str | None) -> Path:
            summary = Summary(
                started_utc=started.isoformat(timespec="seconds"),
                model=model,
                machine=machine,
                load=load,
                carried_rps=carried,
                slo=slo,
                service_slo=service_slo,
                runs=tuple(runs),
                verdict=verdict(runs),
                incomplete=incomplete,
                options=config.model_dump(mode="json"),
            )
            (out_dir / "timeline.jsonl").write_text("".join(sample.model_dump_json() + "\n" for sample in timeline))
            path = write_report(out_dir, summary, records)
            for line in report_lines(summary):
                progress.note(line)
            return path

        try:
            for run, policy in enumerate(config.policies):
                records[policy], samples = run_policy(
                    service, config, policy, run, model, shaped.arrivals, out_dir, progress
                )
                timeline += samples
                runs.append(summarise(records[policy], samples, slo, config.duration_s))
                progress.note(_run_line(runs[-1]))
        except (LoadtestError, KeyboardInterrupt) as error:
            if runs:
                progress.note(f"report of the finished runs: {report(str(error) or 'interrupted')}")
            raise
        path = report(None)
        if silent := [f"{run.policy}: {run.invalid_because}" for run in runs if run.unanswered]:
            progress.note(f"report: {path}")
            raise LoadtestError("; ".join(silent))
        return path


@contextmanager
def _results_folder(path: Path, progress: Progress) -> Iterator[Path]:
    """A new folder, which goes again where the load test ends before anything is in it."""
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"--out: cannot make the folder {path} ({error.strerror})") from error
    progress.note(f"results go to {path}")
    try:
        yield path
    except BaseException:
        with suppress(OSError):  # not empty
            path.rmdir()
        raise


@contextmanager
def _service(config: LoadtestConfig, key: str | None, out_dir: Path, progress: Progress) -> Iterator[ServiceClient]:
    if config.url is not None:
        addresses(config.url)  # refuses a public one before anything is sent
        with ServiceClient(config.url, key, allow_host=config.allow_host) as service:
            try:
                yield service
            finally:
                if config.directed:
                    _hand_back(service, progress)
        return
    assert config.service_config is not None, "LoadtestConfig demands one of the two"
    if config.directed and _is_plain(config.service_config):
        raise InputError(
            f"{config.service_config}: engine.quantization is none, and a plain engine takes no directives: give --policies plain"
        )
    command = serve_command(config.service_config)
    with (
        started_service(command, out_dir / "service.log", START_LIMIT_S, progress.say) as started,
        ServiceClient(started.url, started.key) as service,
    ):
        progress.note(f"service ready at {started.url}")
        yield service


def _is_plain(service_config: Path) -> bool:
    """Whether a service's configuration is of plain engines. What is wrong with the file the service says best."""
    try:
        engine = read_yaml_file(service_config)["engine"]
        return bool(engine["quantization"] == "none")
    except (YamlFileError, KeyError, TypeError):
        return False


def _key(config: LoadtestConfig) -> str | None:
    """The key of a running service. The variable's is for the service alone: a server without a controller gets it not."""
    if config.admin_key_file is not None:
        try:
            key, where = config.admin_key_file.read_text(encoding="utf-8").strip(), str(config.admin_key_file)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--admin-key-file: cannot read {config.admin_key_file} ({error})") from error
    elif config.directed:
        key, where = os.environ.get(ADMIN_KEY_ENV, ""), f"the environment variable {ADMIN_KEY_ENV}"
    else:
        return None
    if not key:
        raise InputError(
            f"expected the admin key of the service in {where}; make serve leaves it in a file: give --admin-key-file "
            "runs/admin.key; a server without a controller needs none: give --policies plain"
        )
    if not key.isascii() or not key.isprintable():
        raise InputError(f"expected one line of ASCII as the key in {where}")
    return key


def _hand_back(service: ServiceClient, progress: Progress) -> None:
    """A service that goes on running must not stay pinned to the last run's precision."""
    try:
        service.hand_back()
    except LoadtestError as error:
        progress.note(f"could not hand the precision back to the controller: {error}")


def typical_requests(config: LoadtestConfig, trace: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """The window of the trace whose lengths the calibration uses."""
    start_s = most_bursty_start_s(trace, config.duration_s) if config.start_s is None else config.start_s
    return cut_window(trace, start_s, config.duration_s)


def _load_summary(config: LoadtestConfig, context: int, scale: float, shaped: Selection) -> LoadSummary:
    arrivals = shaped.arrivals
    return LoadSummary(
        trace=config.trace.name if config.trace else "synthetic trace",
        start_s=shaped.start_s,
        span_s=shaped.span_s,
        duration_s=config.duration_s,
        requests=len(arrivals),
        mean_rate_rps=len(arrivals) / config.duration_s,
        peak_rate_rps=peak_rate_rps(arrivals, config.duration_s),
        mean_prompt_tokens=mean(arrival.prompt_tokens for arrival in arrivals),
        mean_output_tokens=mean(arrival.output_tokens for arrival in arrivals),
        context_tokens=context,
        length_scale=scale,
        seed=config.seed,
    )


def _slo(config: LoadtestConfig, service_slo: dict[str, float]) -> Slo:
    """What is given, else what the service steers by."""
    given = {"ttft_ms": config.slo_ttft_ms, "tpot_ms": config.slo_tpot_ms}
    found = service_slo | {name: value for name, value in given.items() if value is not None}
    if set(found) != set(given):
        raise InputError("the server tells no SLO: give --slo-ttft-ms and --slo-tpot-ms")
    return Slo.model_validate(found)


def _run_line(run: RunSummary) -> str:
    return (
        f"{run.policy}: {100 * run.slo_attainment:.1f} % within the SLO, {run.errors} of {run.requests} failed, "
        f"all answered after {run.drained_s:.0f} s" + ("" if run.valid else f"; INVALID: {run.invalid_because}")
    )
