"""What a simulated replica carries and how fast it is alone: the units of load and SLO. Pure.

* Unloaded: one request of the trace's mean lengths, alone, in FP16; the tight SLO is 5 times and the loose one 10 times
  its TTFT and its TPOT, as in the load test.
* Capacity: one replica in FP16 gets requests of the trace's lengths, evenly picked, all at time 0, so that its
  queue never empties. Counted are the tokens it computes between the moments when 20 % and 80 % of the requests have
  been answered, over the mean tokens of a request: requests per second with a full batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest
from workload.traces import Arrival

PROBE_REQUESTS = 4000
COUNTED_FROM, COUNTED_TO = 0.2, 0.8  # share of the probe's requests that have been answered
TIGHT, LOOSE = 5.0, 10.0  # times the unloaded latency


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Latencies of a request that is alone."""

    ttft_ms: float
    tpot_ms: float


def unloaded(table: EngineTable, prompt_tokens: int, output_tokens: int) -> Unloaded:
    """Send one request to an idle replica in FP16; ``output_tokens`` below 2 are taken as 2."""
    request = SimRequest(0, 0.0, prompt_tokens, max(2, output_tokens))
    engine = Engine(table)
    engine.add(0.0, request)
    engine.advance(1e9)
    assert request.tpot_ms is not None, "two tokens have a time between them"
    return Unloaded(request.ttft_ms, request.tpot_ms)


def capacity_rps(table: EngineTable, arrivals: Sequence[Arrival]) -> float:
    """Requests per second of one replica in FP16 with a queue that never empties."""
    assert arrivals, "a trace has at least one request"
    count = max(PROBE_REQUESTS, 8 * table.engine.max_num_seqs)
    picked = [arrivals[index * len(arrivals) // count] for index in range(count)]
    mean_tokens = sum(a.prompt_tokens + a.output_tokens - 1 for a in picked) / count
    engine = Engine(table)
    for index, arrival in enumerate(picked):
        engine.add(0.0, SimRequest(index, 0.0, arrival.prompt_tokens, arrival.output_tokens))
    marks = []
    for share in (COUNTED_FROM, COUNTED_TO):
        while engine.finished_count < share * count:
            engine.advance(engine.ends_s)
        marks.append((engine.ends_s, sum(engine.stats.tokens)))
    (began_s, before), (ended_s, after) = marks
    return (after - before) / (ended_s - began_s) / mean_tokens
