"""Runs the real control loop over small replicas: arrivals in, a timeline and the requests' outcomes out. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.config import ControllerConfig
from controller.loop import ControlLoop
from controller.policy_plots.batching import BatchingReplica, Outcome, Request
from controller.schema import DecisionRecord
from nestedfp.modes import DirectiveMode, Mode

SETTLE_S = 60.0  # at most, after the last arrival, until the queues are empty


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment."""

    at_s: float
    mode: DirectiveMode
    tokens_fp16: int  # totals over all replicas
    tokens_fp8: int
    oldest_wait_s: float  # of the worst replica


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run gave."""

    samples: tuple[Sample, ...]
    outcomes: tuple[Outcome, ...]  # of all replicas, by the time they finished
    records: tuple[DecisionRecord, ...]  # one for every directive

    @property
    def switches_at_s(self) -> tuple[float, ...]:
        """When the mode changed; the first directive is no change."""
        return tuple(r.now_s for r in self.records if r.from_mode is not r.to_mode and r.epoch > 1)

    @property
    def within_slo_share(self) -> float:
        """Of the finished requests; 1 when there are none."""
        return sum(o.within_slo for o in self.outcomes) / len(self.outcomes) if self.outcomes else 1.0

    @property
    def fp16_token_share(self) -> float:
        """Of all tokens computed; 1 when there are none."""
        last = self.samples[-1]
        total = last.tokens_fp16 + last.tokens_fp8
        return last.tokens_fp16 / total if total else 1.0

    @property
    def most_switches_per_minute(self) -> int:
        """In the worst minute."""
        at_s = self.switches_at_s
        return max((sum(0 <= other - begin < 60 for other in at_s) for begin in at_s), default=0)


def drive(
    config: ControllerConfig, arrivals: Iterable[Request], replicas: Sequence[BatchingReplica], until_s: float
) -> Run:
    """Serve ``arrivals`` (in order) with the least busy replica first, stepping the loop until ``until_s``."""
    loop = ControlLoop(config)
    period_s = config.step_period_s
    pending = iter(arrivals)
    upcoming = next(pending, None)
    samples: list[Sample] = []
    records: list[DecisionRecord] = []
    tick = 0
    while (now_s := tick * period_s) <= until_s + SETTLE_S:
        if now_s > until_s and all(replica.outstanding == 0 for replica in replicas):
            break
        while upcoming is not None and upcoming.at_s <= now_s:
            for replica in replicas:
                replica.advance(upcoming.at_s)
            min(replicas, key=lambda replica: replica.outstanding).submit(upcoming)
            upcoming = next(pending, None)
        snapshots = []
        for replica in replicas:
            replica.advance(now_s)
            snapshots.append(replica.snapshot(now_s))
            answer = loop.on_snapshot(now_s, snapshots[-1])
            replica.follower.on_directive(now_s, answer)
        effects = loop.step(now_s)
        for directive in effects.directives:
            for replica in replicas:
                _, ack = replica.follower.on_directive(now_s, directive)
                loop.on_ack(now_s, ack)
        if effects.record is not None:
            records.append(effects.record)
        samples.append(
            Sample(
                at_s=now_s,
                mode=answer.mode,
                tokens_fp16=sum(replica.tokens[Mode.FP16] for replica in replicas),
                tokens_fp8=sum(replica.tokens[Mode.FP8] for replica in replicas),
                oldest_wait_s=max(snapshot.oldest_wait_s for snapshot in snapshots),
            )
        )
        tick += 1
    outcomes = sorted((o for replica in replicas for o in replica.outcomes), key=lambda o: o.finished_s)
    return Run(tuple(samples), tuple(outcomes), tuple(records))
