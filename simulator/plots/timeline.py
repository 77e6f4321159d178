"""One run as it looks over time: the directive, the longest wait, tokens by precision. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.audit import DecisionRecord
from controller.config import ControllerConfig
from nestedfp.modes import DirectiveMode
from simulator import simulation_summary
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from workload.azure import Arrival
from workload.slo import Slo

SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment."""

    at_s: float
    mode: DirectiveMode  # of the directive
    tokens_fp16: int  # totals over all replicas
    tokens_fp8: int
    oldest_wait_s: float  # of the worst replica


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run, and the objectives that its requests are held against."""

    result: RunResult
    slo: Slo

    @property
    def samples(self) -> list[Sample]:
        return self.result.samples

    @property
    def records(self) -> list[DecisionRecord]:
        """One for every directive."""
        return self.result.records

    @property
    def switches_at_s(self) -> tuple[float, ...]:
        """When the mode changed; the first directive is no change."""
        return simulation_summary.switches_at_s(self.records)

    @property
    def most_switches_per_minute(self) -> int:
        """In the worst minute."""
        return simulation_summary.worst_minute(self.records)

    @property
    def within_slo_share(self) -> float:
        """Of all requests."""
        return simulation_summary.attainment(self.result.requests, self.slo)

    @property
    def fp16_token_share(self) -> float:
        """Of all tokens computed; 1 when there are none."""
        share = simulation_summary.share(self.samples[-1].tokens_fp16, self.samples[-1].tokens_fp8)
        return 1.0 if share is None else share


def record_timeline(
    table: EngineTable, config: ControllerConfig, arrivals: Iterable[Arrival], scenario: Scenario
) -> Timeline:
    """Simulate ``arrivals`` (in order) and look at the cluster every ``SAMPLE_EVERY_S``."""
    requests = [
        SimRequest(index, arrival.at_s, arrival.prompt_tokens, arrival.output_tokens)
        for index, arrival in enumerate(arrivals)
    ]
    return Timeline(Cluster(table, config, scenario, sample, SAMPLE_EVERY_S).run(requests), config.slo)


def sample(now_s: float, cluster: Cluster) -> Sample:
    """The cluster now."""
    engines = [replica.engine for replica in cluster.present.values()]
    for engine in engines:
        engine.advance(now_s)
    return Sample(
        at_s=now_s,
        mode=cluster.records[-1].to_mode if cluster.records else DirectiveMode.FP16,
        tokens_fp16=sum(engine.stats.tokens[False] for engine in engines),
        tokens_fp8=sum(engine.stats.tokens[True] for engine in engines),
        oldest_wait_s=max((engine.oldest_wait_s(now_s) for engine in engines), default=0.0),
    )
