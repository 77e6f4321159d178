"""Runs the campaign: the service is started once; each fault has a load, a watch and a time to recover of its own."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from chaos import faults
from chaos.fault_cost import FaultResult, Injection, result
from chaos.watch import Family, Watch
from deploy.config import load
from loadtest.sender.background import BackgroundLoad
from loadtest.sender.plan import PlannedRequest, SendPlan
from loadtest.sender.prompts import TOKEN_IDS
from loadtest.service.process import serve_command, started_service

RATE_PER_S = 4.0
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 64
BASELINE_S = 4.0  # of load before each fault
HOLD_S = 5.0  # all has been well for so long: recovered
RECOVERY_LIMIT_S = 240.0  # a replica on two cores that others use as well takes a minute to start
SHOWS_S = 15.0  # within which a fault shows
PATIENCE_S = 120.0  # of the load's clients: what takes so long hangs
LONGEST_S = 900.0  # that a load goes on
START_LIMIT_S = 900.0


class CampaignError(RuntimeError):
    """The campaign cannot go on; the message says why."""


@dataclass(frozen=True)
class ServiceUnderTest:
    """The service that was started.

    Attributes:
        url: of loopback.
        family: its processes.
        model_id: that it serves.
        replicas: that it should have.
    """

    url: str
    family: Family
    model_id: str
    replicas: int


@contextlib.contextmanager
def running(config: Path, port: int, folder: Path, say: Callable[[str], None]) -> Iterator[ServiceUnderTest]:
    """Start the service in a configuration, on another port; stop it at the end.

    Raises:
        ConfigError: the file cannot be used.
        loadtest.errors.InputError: nor can what it names.
        loadtest.errors.ServiceError: it does not start.
    """
    load(config)  # as it is written: below it is written anew, without a fault such as a key that stands there twice
    settings = yaml.safe_load(config.read_text())
    settings["http"] = {**(settings.get("http") or {}), "port": port}
    own = folder / "deployment.yaml"
    own.write_text(yaml.safe_dump(settings))
    read = load(own)
    say("starting the service")
    with started_service(serve_command(own), folder / "service.log", START_LIMIT_S, lambda _: None) as started:
        yield ServiceUnderTest(started.url, Family(started.pid), read.model.id, read.replicas)


def steady_load(service: ServiceUnderTest, folder: Path) -> BackgroundLoad:
    """Ask at a steady rate for so long, or until the load is ended."""
    requests = (
        PlannedRequest(at_s=number / RATE_PER_S, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
        for number in range(int(LONGEST_S * RATE_PER_S))
    )
    plan = SendPlan(
        kind="open",
        policy="plain",
        run=0,
        url=service.url,
        model=service.model_id,
        requests=tuple(requests),
        duration_s=LONGEST_S,
        drain_s=PATIENCE_S,
        request_timeout_s=PATIENCE_S,
        seed=0,
        token_ids=TOKEN_IDS,
        records_path=folder / "requests.jsonl",
    )
    return BackgroundLoad(plan)


def strike(service: ServiceUnderTest, name: str, folder: Path) -> FaultResult:
    """Inject a fault under the load, wait until all is well again, and sum up what it cost."""
    with Watch(service.url, service.family) as watch, steady_load(service, folder) as sent:
        sent.start_s()
        time.sleep(BASELINE_S)
        _wait(lambda: watch.sound_for_s(service.replicas) >= BASELINE_S / 2)
        injection = faults.FAULTS[name](service.family)
        _wait(lambda: _is_over(watch, injection, service))
        records = sent.end()
    return result(name, injection, service.replicas, records, watch.statuses, watch.processes)


def _is_over(watch: Watch, injection: Injection, service: ServiceUnderTest) -> bool:
    """Whether all has been well for a while since a fault, and it had the time to show."""
    since_s = time.monotonic() - injection.released_s
    return since_s >= SHOWS_S and watch.sound_for_s(service.replicas) >= HOLD_S and service.family.settled()


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + RECOVERY_LIMIT_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.25)


def strike_all(
    service: ServiceUnderTest, names: Sequence[str], folder: Path, say: Callable[[str], None]
) -> Iterator[FaultResult]:
    """Inject these faults one after another.

    Raises:
        CampaignError: the service is not whole any more, so that the next fault would be measured on what the last left.
    """
    for name in names:
        say(name)
        try:
            found = strike(service, name, folder)
        except (subprocess.SubprocessError, RuntimeError) as error:
            raise CampaignError(f"{name}: {error}") from error
        yield found
        if found.recover_s is None:
            raise CampaignError(f"{name}: the service did not recover within {RECOVERY_LIMIT_S:.0f} s")
