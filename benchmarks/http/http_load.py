"""The loads of the HTTP benchmark, for the load test's sender."""

from dataclasses import dataclass
from pathlib import Path

from loadtest.sender.plan import PlannedRequest, SendPlan
from workload.synthetic import synthetic_trace

REQUESTS = 8192  # of a closed loop, which begins again then; prefix caching is off all the same
SEED = 20
REQUEST_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """One load. Closed loop with ``streams``, open loop with ``rate_per_s``.

    Attributes:
        warm_s: from the start to the window that is measured.
        window_s: what is measured.
        drain_s: for which requests of the window may last beyond it.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    warm_s: float
    window_s: float
    streams: int = 0
    rate_per_s: float = 0.0
    drain_s: float = 10.0

    def plan(self, url: str, model_id: str, records: Path, run: int = 0) -> SendPlan:
        """Return what a sender sends.

        Args:
            records: the file that it writes.
            run: number of the sender, where several send at once; their prompts differ.
        """
        load_s = self.warm_s + self.window_s
        poisson = () if self.streams else synthetic_trace(SEED + run, load_s, self.rate_per_s, bursts=False)
        at_s = [0.0] * REQUESTS if self.streams else [arrival.at_s for arrival in poisson]
        # A closed loop's first answers are of all lengths, so that its streams do not end all at once ever after.
        outputs = [1 + self.output_tokens * stream // self.streams for stream in range(self.streams)]
        outputs += [self.output_tokens] * (len(at_s) - len(outputs))
        return SendPlan(
            kind="closed" if self.streams else "open",
            policy="plain",
            run=run,
            url=url,
            model=model_id,
            requests=tuple(
                PlannedRequest(at_s=at, prompt_tokens=self.prompt_tokens, output_tokens=output)
                for at, output in zip(at_s, outputs, strict=True)
            ),
            duration_s=load_s + self.drain_s if self.streams else load_s,
            drain_s=self.drain_s,
            users=self.streams or 1,
            request_timeout_s=REQUEST_LIMIT_S,
            seed=SEED,
            records_path=records,
        )
