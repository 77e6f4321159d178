"""When the steps of a timed engine end, and which requests get a token from them. Pure: no vLLM, no clock."""

from typing import Any


class StepClock:
    """When a step ends that begins now.

    A step that continues requests of the step before begins where that one ended: what the engine core did between the two
    overlaps with the device, as it does on a GPU with async scheduling. A step of new requests only begins now.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._end_s = float("-inf")

    def wait_s(self, now_s: float, continues: bool) -> float:
        """Return how long to sleep."""
        late_s = now_s - self._end_s
        began_s = self._end_s if continues and late_s < self._step_s else now_s
        self._end_s = began_s + self._step_s
        return max(0.0, self._end_s - now_s)


class Positions:
    """Which requests of a step reach the end of what is known of them, so that the step samples a token for each."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[str, int] = {}

    def sampling(self, scheduler_output: Any) -> list[str]:
        """Return the ids of the requests that get a token from this step."""
        for finished in scheduler_output.finished_req_ids:
            self._prompt_tokens.pop(finished, None)
        known, computed = {}, {}
        for new in scheduler_output.scheduled_new_reqs:
            self._prompt_tokens[new.req_id] = known[new.req_id] = len(new.prompt_token_ids)
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for request, before, outputs in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            known[request] = self._prompt_tokens[request] + outputs
            computed[request] = before
        scheduled = scheduler_output.num_scheduled_tokens
        return [request for request, count in scheduled.items() if computed[request] + count >= known[request]]
