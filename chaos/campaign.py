"""Runs the campaign: the service is started once; each fault has a load, a watch and a time to recover of its own."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from chaos import faults, soak
from chaos.fault_cost import FaultResult, Injection, detected_after_s, result
from chaos.faults import Arena
from chaos.load import open_load
from chaos.soak import SoakResult
from chaos.watch import Family, Watch, family_of
from loadtest.sender.background import BackgroundLoad
from loadtest.sender.plan import PlannedRequest
from loadtest.service.process import serve_command, started_service

RATE_PER_S = 4.0
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 64
BASELINE_S = 4.0  # of load before each fault
HOLD_S = 5.0  # all has been well for so long: recovered
RECOVERY_LIMIT_S = 240.0  # a replica on two cores that others use as well takes a minute to start
DETECT_LIMIT_S = 15.0  # after the end of a fault's cause, for its first sign
PATIENCE_S = 120.0  # of the load's clients: what takes so long hangs
LONGEST_S = 900.0  # that a load goes on
SAMPLE_PERIOD_S = 5.0
WARM_S = 20.0  # of load before a soak is measured


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
        max_body_bytes: that it accepts.
    """

    url: str
    family: Family
    model_id: str
    replicas: int
    max_body_bytes: int


@contextlib.contextmanager
def running(
    config: Path, port: int, folder: Path, start_limit_s: float, say: Callable[[str], None]
) -> Iterator[ServiceUnderTest]:
    """Start the service in a configuration, on another port; stop it at the end.

    Raises:
        ConfigError: the file cannot be used.
        loadtest.errors.InputError: nor can what it names.
        loadtest.errors.ServiceError: it does not start.
        CampaignError: its processes are not found.
    """
    from deploy.config import load

    load(config)  # as it is written: below it is written anew, without a fault such as a key that stands there twice
    settings = yaml.safe_load(config.read_text())
    settings["http"] = {**(settings.get("http") or {}), "port": port}
    own = folder / "deployment.yaml"
    own.write_text(yaml.safe_dump(settings))
    read = load(own)
    last = ""

    def progress(text: str) -> None:
        nonlocal last
        if text.partition(":")[0] != last:  # once, not every second
            last = text.partition(":")[0]
            say(last)

    with started_service(serve_command(own), folder / "service.log", start_limit_s, progress) as started:
        family = family_of(started.pid)
        if family is None:
            raise CampaignError(f"the processes of the service on port {port} are not found")
        yield ServiceUnderTest(started.url, family, read.model.id, read.replicas, read.http.max_body_bytes)


def steady_load(service: ServiceUnderTest, folder: Path, for_s: float) -> BackgroundLoad:
    """Ask at a steady rate for so long, or until the load is ended."""
    due_s = [number / RATE_PER_S for number in range(int(for_s * RATE_PER_S))]
    requests = (PlannedRequest(at_s=at_s, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS) for at_s in due_s)
    records = folder / "requests.jsonl"
    return open_load(service.url, service.model_id, requests, for_s, PATIENCE_S, records)


def strike(service: ServiceUnderTest, name: str, malformed: int, folder: Path) -> FaultResult:
    """Inject a fault under the load, wait until all is well again, and sum up what it cost."""
    with Watch(service.url, service.family) as watch, steady_load(service, folder, LONGEST_S) as sent:
        sent.start_s()
        time.sleep(BASELINE_S)
        _wait(lambda: watch.sound_for_s(service.replicas) >= BASELINE_S / 2, RECOVERY_LIMIT_S)
        arena = Arena(service.url, service.family, service.model_id, service.max_body_bytes, malformed, folder)
        done = faults.FAULTS[name](arena)
        _wait(lambda: _is_over(watch, done.injection, service.replicas, service.family), RECOVERY_LIMIT_S)
        records = sent.end()
    summed = result(
        name,
        done.injection,
        service.replicas,
        records,
        watch.statuses,
        watch.processes,
        done.notes,
    )
    return replace(summed, hung=summed.hung + done.hung)


def _is_over(watch: Watch, injection: Injection, replicas: int, family: Family) -> bool:
    """Whether all has been well for a while since a fault, and it had the time to show."""
    since_s = time.monotonic() - injection.released_s
    if watch.sound_for_s(replicas) < HOLD_S or since_s < HOLD_S or not family.settled():
        return False
    statuses = watch.statuses
    before = [look for look in statuses if look.at_s < injection.began_s][-1]
    seen = detected_after_s(injection, before, statuses, watch.processes) is not None
    return seen or not injection.victims or since_s >= DETECT_LIMIT_S


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.25)


def soaked(service: ServiceUnderTest, minutes: float, folder: Path) -> tuple[SoakResult, str]:
    """Ask steadily for so long and look at memory and descriptors.

    Raises:
        ValueError: too short.
    """
    samples = []
    with steady_load(service, folder, WARM_S + 60 * minutes) as sent:
        sent.start_s()
        time.sleep(WARM_S)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 60 * minutes:
            samples.append(soak.sample(service.family.processes()))
            time.sleep(SAMPLE_PERIOD_S)
        took_s = time.monotonic() - began_s
        records = sent.end()
    found, said = soak.growth(samples, took_s / 60)
    bad = sum(record.error is not None for record in records)
    return found, f"{len(records)} requests, {bad} of them not answered whole; {said}"


def strike_all(
    service: ServiceUnderTest, names: Sequence[str], malformed: int, folder: Path, say: Callable[[str], None]
) -> Iterator[FaultResult]:
    """Inject these faults one after another.

    Raises:
        CampaignError: the service is not whole any more, so that the next fault would be measured on what the last left.
    """
    for name in names:
        say(name)
        try:
            found = strike(service, name, malformed, folder)
        except faults.NoVictim as error:  # a single rank has no worker beside the engine core
            say(f"left out: {error}")
            continue
        except (subprocess.SubprocessError, RuntimeError) as error:
            raise CampaignError(f"{name}: {error}") from error
        yield found
        if found.recover_s is None:
            raise CampaignError(f"{name}: the service did not recover within {RECOVERY_LIMIT_S:.0f} s")
