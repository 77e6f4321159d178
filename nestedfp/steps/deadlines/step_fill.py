"""Whether an engine fills up: what is in it grows towards more than it can hold, or than FP8 could carry in time.

Pure and standard library only, as all of this folder, so that the engine's scheduler and the simulator run the same code.
Deadlines see who would be late. They do not see that requests come faster than they go: an engine with an empty queue may
spend exact steps on them until it stands at its limit, and if arrivals exceed what FP8 does, nothing brings it back. So a step
runs FP8 as well when, at the growth of the last seconds, a horizon ahead

* more requests would be inside than the engine runs at once, or
* the KV cache would be full, which keeps requests waiting, or throws out those that run, however many places there are, or
* an FP8 step of one token for each of them would take the rule's share of the TPOT deadline: the rest is for their prompts. Where
  one request alone takes that share, since a large model reads its weights for so long, the limit is a share of what it leaves.
"""

from math import exp

from nestedfp.modes import Mode
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import StepTimes

# Time constants of the growth. Of requests: arrivals of half a second are noise, those of two are half of a burst. The KV cache
# grows by a whole prompt at a time: going by one second, an engine at a steady load that is three quarters full would often think
# that it fills up.
REQUESTS_GROWTH_S = 1.0
KV_GROWTH_S = 2.0
# Of the TPOT deadline beyond an FP8 step of one request: a slow engine is not full before its steps have grown by so much.
# With less fewer tokens would be exact there, with more, more requests late in bursts.
LEAST_GROWN_SHARE = 0.25


class Growth:
    """How fast a quantity grows, smoothed exponentially over a time that passes unevenly.

    Args:
        time_constant_s: of the smoothing.
    """

    def __init__(self, time_constant_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._value = self._seen_s = 0.0
        self._per_s = 0.0

    def in_a(self, horizon_s: float, now_s: float, value: float) -> float:
        """Take the present value; return what it will be a horizon later. A time before the last one counts as that one."""
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            grown_per_s = (value - self._value) / passed_s
            self._per_s += (1 - exp(-passed_s / self._time_constant_s)) * (grown_per_s - self._per_s)
            self._seen_s, self._value = now_s, value
        return value + self._per_s * horizon_s


class FillWatch:
    """How much an engine will hold soon.

    Args:
        max_seqs: the most requests that it runs at once.
    """

    def __init__(self, max_seqs: int) -> None:
        self._max_seqs = max_seqs
        self._requests = Growth(REQUESTS_GROWTH_S)
        self._kv = Growth(KV_GROWTH_S)

    def late(self, rule: StepRule, times: StepTimes, now_s: float, requests: int, kv_usage: float) -> str | None:
        """Say whether a step that begins now had better run FP8 because the engine fills up: ``"fill_slack"``, or None.

        Args:
            rule: with the horizon; without one the answer is None.
            times: what steps take.
            now_s: of one clock; a time before the last one counts as that one.
            requests: inside, those that wait among them.
            kv_usage: share of the KV cache that they hold, 0 to 1.
        """
        horizon_s = rule.fill_horizon_s or 0.0
        soon = round(self._requests.in_a(horizon_s, now_s, requests))
        kv_soon = self._kv.in_a(horizon_s, now_s, kv_usage)
        if rule.fill_horizon_s is None:
            return None
        if soon > self._max_seqs or kv_soon > 1.0:
            return "fill_slack"
        if rule.tpot_deadline_s is None or not times.are_measured or soon < 1:
            return None
        deadline_s, soon_s = rule.tpot_deadline_s, times.of_decodes_s(Mode.FP8, soon, requests)
        if soon_s <= rule.fill_decode_share * deadline_s:
            return None
        one_s = times.of_decodes_s(Mode.FP8, 1, requests)
        return "fill_slack" if soon_s > one_s + LEAST_GROWN_SHARE * (deadline_s - one_s) else None
