"""Whether an engine fills up: the requests in it grow towards more than it can run, or than FP8 could carry in time.

Pure and standard library only, like nestedfp/step_slack.py, so that the engine's scheduler and the simulator run the same code.
Deadlines see who would be late. They do not see that requests come faster than they go: an engine with an empty queue may
spend exact steps on them until it stands at its limit, and if arrivals exceed what FP8 does, nothing brings it back. So a step
runs FP8 as well when, at the growth of the last second, a horizon ahead

* more requests would be inside than the engine runs at once, or
* an FP8 step of one token for each of them would take the rule's share of the TPOT deadline: the rest is for their prompts.
"""

from math import exp

from nestedfp.modes import Mode
from nestedfp.step_rule import StepRule
from nestedfp.step_slack import StepTimes

GROWTH_S = 1.0  # time constant of the growth: arrivals of half a second are noise, those of two are half of a burst


class FillWatch:
    """How many requests an engine will hold soon.

    Args:
        max_seqs: the most requests that it runs at once.
    """

    def __init__(self, max_seqs: int) -> None:
        self._max_seqs = max_seqs
        self._requests = 0
        self._seen_s = 0.0
        self._per_s = 0.0

    def late(self, rule: StepRule, times: StepTimes, now_s: float, requests: int) -> str | None:
        """Say whether a step that begins now had better run FP8 because the engine fills up: ``"fill_slack"``, or None.

        Args:
            rule: with the horizon; without one the answer is None.
            times: what steps take.
            now_s: of one clock; a time before the last one counts as that one.
            requests: inside, those that wait among them.
        """
        self._learn(now_s, requests)
        if rule.fill_horizon_s is None:
            return None
        soon = round(requests + self._per_s * rule.fill_horizon_s)
        if soon > self._max_seqs:
            return "fill_slack"
        if rule.tpot_deadline_s is None or not times.are_measured or soon < 1:
            return None
        limit_s = rule.fill_decode_share * rule.tpot_deadline_s
        return "fill_slack" if times.of_decodes_s(Mode.FP8, soon, requests) > limit_s else None

    def _learn(self, now_s: float, requests: int) -> None:
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            grown_per_s = (requests - self._requests) / passed_s
            self._per_s += (1 - exp(-passed_s / GROWTH_S)) * (grown_per_s - self._per_s)
            self._seen_s, self._requests = now_s, requests
