"""What is left of the deadlines of an engine's requests: how long a step may take before one of them passes its own.

Pure and standard library only, like nestedfp/steps/step_rule.py, so that the engine's scheduler and the simulator run the same
code. Every call costs the same for one request and for a thousand (amortised; a change of the TPOT deadline sorts the
decoding ones anew). Times are seconds of one clock of the caller's.

Two facts make that possible.

* First come, first served, among those of one priority: a prompt has its first token when all prompt tokens before it and its own
  are computed. With ``c`` the prompt tokens that had come until and with it, and ``d`` those done so far, that is
  ``(c - d) * s_per_token`` from now. ``c * s_per_token - arrived_s`` is a constant of the prompt, so the tightest one of the line
  is the front of a queue of maxima.
* Every decode step gives every decoding request one token. With ``n`` the steps so far and ``n0`` those when it had its first
  token at ``first_s``, a step that ends at ``t`` gives it a mean TPOT of ``(t - first_s) / (n + 1 - n0)``. That stays below
  the deadline ``d`` while ``t <= first_s - d * n0 + d * (n + 1)``: again a constant of the request and one number of all, so
  the tightest one is the top of a heap.

A third number stands for requests that nobody knows yet: a usual prompt that comes just after a step has begun.

A fourth is kept back. What FP16 takes longer, per token, is least in steps with parts of prompts: there are more tokens in them.
But steps of decodes alone are the most, and would use up what the TPOT deadline leaves before the next prompt is there; so
they must leave enough for some steps with a prompt. Those that come at once, in a burst, find it unspent in either precision.
But only as far as it is needed: an answer that has just begun has no slack, and where prompts are few, keeping back would let
it begin in FP8 for nothing. What says that it is needed are prompts that had to run FP8 for the decodes' sake.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import exp, inf

from nestedfp.modes import Mode
from nestedfp.steps.step_costs import StepCosts
from nestedfp.steps.step_rule import StepRule

RATE_S = 2.0  # time constant of the rate at which prompt tokens arrive
MEAN_WEIGHT = 0.05  # of the newest prompt in the mean length
RESERVE_S = 1.0  # nothing is kept back for more prompts than come in so long: an idle engine keeps nothing back
SQUEEZED_WEIGHT = 0.05  # of the newest step with prompts in the share of those that would have made a decode late
SPARE = 64  # entries of requests that have left, before the heap or the line of the others is made anew
# Deadlines after which a request has missed its own for certain: policies hand down 0.45 to 0.75 of the objective.
MISSED_AFTER = 2.5
MOST_VOTES = 32  # requests of one priority in a row, of which as many of another make the other the usual one
LEAST_CHUNK_TOKENS = 32  # of prompts in a step that is capped by its time
LEAST_GAIN = 0.02  # of a step with two classes, over one that is all FP16
MOST_KEPT = 100_000  # costs of steps of two classes
EXCESS_WEIGHT = 0.2  # of the newest step in what steps take beyond their measured cost


class StepTimes:
    """Predicts what a step takes: its measured cost, and what steps of its kind have taken beyond theirs lately.

    The measured cost is of linear layers and what surrounds them; attention over long contexts comes on top, and takes
    the same in both precisions, so that one correction serves both.

    Args:
        costs: measured at the engine's start. None: only what steps have taken lately is known.
    """

    def __init__(self, costs: StepCosts | None) -> None:
        self._costs = costs
        self._excess_s = [0.0, 0.0]  # of steps of decodes alone, and of those with parts of prompts
        self._mixed_excess_s: list[float | None] = [None, None]  # the same of steps of both classes; None: none yet
        self._costs_s: dict[int, tuple[float, float]] = {}  # by tokens
        self._mixed_costs_s: dict[tuple[int, int], float] = {}  # by exact and fast rows

    @property
    def are_measured(self) -> bool:
        """Whether the cost of a step is known by its size."""
        return self._costs is not None

    def of_decodes_s(self, mode: Mode, decodes: int, now: int) -> float:
        """Return how long a step of one token for each of so many requests would take, in seconds.

        What such steps take beyond their measured cost is attention in the main, and grows with the requests. Of steps with prompts
        it is not: their cost was measured on an idle card, and under a load large ones take longer.

        Args:
            mode: of the step.
            decodes: the requests.
            now: those there are while steps take what they take.
        """
        return self._cost_s(mode, decodes) + max(0.0, self._excess_s[False]) * decodes / max(1, now)

    def s_per_prompt_token(self, budget_tokens: int) -> float:
        """What a prompt token costs in full FP8 steps; 0 where nothing was measured."""
        return 0.0 if self._costs is None else self._costs.times_ms(budget_tokens)[1] * 1e-3 / budget_tokens

    def predicted_s(self, mode: Mode, tokens: int, *, with_prompts: bool) -> float:
        """Return how long a step of so many tokens will take, in seconds."""
        return max(0.0, self._cost_s(mode, tokens) + self._excess_s[with_prompts])

    @property
    def are_by_row(self) -> bool:
        """Whether the engine can compute exact and fast rows in one step."""
        return self._costs is not None and self._costs.mixed_ms(1, 1) is not None

    def of_rows_s(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> float:
        """Return how long a step of so many exact and fast rows will take, in seconds; infinity where it cannot hold both."""
        if not fast_rows or not exact_rows:
            mode = Mode.FP8 if fast_rows else Mode.FP16
            return self.predicted_s(mode, exact_rows + fast_rows, with_prompts=with_prompts)
        excess_s = self._mixed_excess_s[with_prompts]
        excess_s = self._excess_s[with_prompts] if excess_s is None else excess_s
        return max(0.0, self._mixed_s(exact_rows, fast_rows) + excess_s)

    def classes_pay(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> bool:
        """Whether a step that computes some of its rows in FP8 takes less than one that is all FP16."""
        if not fast_rows or not exact_rows:
            return bool(fast_rows)
        whole_s = self.of_rows_s(exact_rows + fast_rows, 0, with_prompts=with_prompts)
        return self.of_rows_s(exact_rows, fast_rows, with_prompts=with_prompts) * (1 + LEAST_GAIN) < whole_s

    def rows_took(self, exact_rows: int, fast_rows: int, took_s: float, *, with_prompts: bool) -> None:
        """Learn how long a step of exact and fast rows has taken."""
        if not fast_rows or not exact_rows:
            self.took(Mode.FP8 if fast_rows else Mode.FP16, exact_rows + fast_rows, took_s, with_prompts=with_prompts)
            return
        excess_s = took_s - self._mixed_s(exact_rows, fast_rows)
        before_s = self._mixed_excess_s[with_prompts]
        before_s = self._excess_s[with_prompts] if before_s is None else before_s
        self._mixed_excess_s[with_prompts] = before_s + EXCESS_WEIGHT * (excess_s - before_s)

    def _mixed_s(self, exact_rows: int, fast_rows: int) -> float:
        key = exact_rows, fast_rows
        if (known_s := self._mixed_costs_s.get(key)) is None:
            mixed_ms = None if self._costs is None else self._costs.mixed_ms(exact_rows, fast_rows)
            if len(self._mixed_costs_s) >= MOST_KEPT:
                self._mixed_costs_s.clear()
            known_s = self._mixed_costs_s[key] = inf if mixed_ms is None else mixed_ms * 1e-3
        return known_s

    def prompt_tokens_within(self, mode: Mode, limit_s: float, decodes: int, budget_tokens: int) -> int:
        """Return the prompt tokens of the largest step with so many decodes that takes at most ``limit_s`` seconds.

        At least ``LEAST_CHUNK_TOKENS``, as far as the budget allows: else no prompt would ever be computed.
        """
        low, high = 0, max(0, budget_tokens - decodes)
        least = min(LEAST_CHUNK_TOKENS, high)
        while low < high:
            middle = (low + high + 1) // 2
            if self.predicted_s(mode, decodes + middle, with_prompts=True) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return max(low, least)

    def took(self, mode: Mode, tokens: int, took_s: float, *, with_prompts: bool) -> None:
        """Learn how long a step has taken."""
        excess_s = took_s - self._cost_s(mode, tokens)
        self._excess_s[with_prompts] += EXCESS_WEIGHT * (excess_s - self._excess_s[with_prompts])

    def _cost_s(self, mode: Mode, tokens: int) -> float:
        if self._costs is None:
            return 0.0
        if (known_s := self._costs_s.get(tokens)) is None:
            fp16_ms, fp8_ms = self._costs.times_ms(tokens)
            known_s = self._costs_s[tokens] = fp16_ms * 1e-3, fp8_ms * 1e-3
        return known_s[mode is Mode.FP8]


class _Place:
    """A request's place in line."""

    __slots__ = ("arrived_s", "came", "computed", "gone", "tokens")

    def __init__(self, arrived_s: float, tokens: int, came: int) -> None:
        self.arrived_s = arrived_s
        self.tokens = tokens  # of the prompt
        self.came = came  # prompt tokens of the line until and with it
        self.computed = 0  # of its own
        self.gone = False


class PromptLine:
    """The requests of one priority without a first token, in the order in which they came.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self._s_per_token = s_per_token
        self._came = 0  # prompt tokens
        self._done = 0  # of them: computed, or of requests that have left the line
        self._places: dict[Hashable, _Place] = {}
        self._by_age: deque[_Place] = deque()
        self._by_need: deque[_Place] = deque()  # falling; whoever comes after a smaller one hides it

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> int:
        """Prompt tokens still to be computed."""
        return self._came - self._done

    def arrived(self, key: Hashable, arrived_s: float, tokens: int) -> None:
        """A request has come to the end of the line; one that was in it already leaves its place."""
        self.left(key)
        self._came += tokens
        place = self._places[key] = _Place(arrived_s, tokens, self._came)
        self._enqueue(place)
        if len(self._by_age) > 2 * len(self._places) + SPARE:  # one that stays in front keeps those behind it that left
            self._sort()

    def price(self, s_per_token: float) -> None:
        """From now on a prompt token costs so much."""
        self._s_per_token = s_per_token
        self._sort()

    def computed(self, key: Hashable, tokens: int) -> None:
        """So many tokens of its prompt are computed, with the step being filled, or were found in a cache.

        Of requests that are not in line nothing is noted.
        """
        if (place := self._places.get(key)) is not None:
            self._done += tokens - place.computed
            place.computed = tokens

    def left(self, key: Hashable) -> None:
        """It has its first token, or its client has gone. Unknown ones do no harm.

        One that goes out of its turn takes with it the needs that it hid: until their turn only the first one's age counts.
        """
        if (place := self._places.pop(key, None)) is None:
            return
        place.gone = True
        self._done += place.tokens - place.computed
        self._drop(-inf)  # here and not where it is asked for: most policies never ask

    def oldest_s(self) -> float | None:
        """When the first in line came that still has a deadline; None: nobody has."""
        return self._by_age[0].arrived_s if self._by_age else None

    def latest_start_s(self, ttft_s: float, ahead: int = 0) -> float:
        """Until when full FP8 steps must begin so that every request in line has its first token within ``ttft_s``.

        Args:
            ttft_s: the deadline, from a request's arrival.
            ahead: prompt tokens that go before the line.

        Returns:
            A time, perhaps one that has passed; infinity where nobody has a deadline.
        """
        if not self._by_need:
            return inf
        return ttft_s - self._need(self._by_need[0]) + (self._done - ahead) * self._s_per_token

    def give_up(self, before_s: float) -> None:
        """Those that came before have missed their deadline in either precision: it decides nothing any more.

        They stay in line, and whoever comes behind them waits for them.
        """
        self._drop(before_s)

    def _need(self, place: _Place) -> float:
        return place.came * self._s_per_token - place.arrived_s

    def _enqueue(self, place: _Place) -> None:
        need = self._need(place)
        while self._by_need and self._need(self._by_need[-1]) <= need:
            self._by_need.pop()
        self._by_need.append(place)
        self._by_age.append(place)

    def _sort(self) -> None:
        self._by_age.clear()
        self._by_need.clear()
        for place in self._places.values():
            self._enqueue(place)

    def _drop(self, before_s: float) -> None:
        for queue in (self._by_age, self._by_need):
            while queue and (queue[0].gone or queue[0].arrived_s < before_s):
                queue.popleft()


class PromptLines:
    """The lines of all priorities: those of a lower number go first.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self._s_per_token = s_per_token
        self._lines: dict[int, PromptLine] = {}  # that have requests, in their order
        self._priorities: dict[Hashable, int] = {}  # of the requests in line
        self._usual_priority = self._votes = 0  # of most of the last ones
        self._tokens_per_s = 0.0
        self._mean_tokens = 0.0  # of a prompt
        self._newest_s = -inf

    def __len__(self) -> int:
        return len(self._priorities)

    def arrived(self, key: Hashable, arrived_s: float, tokens: int, priority: int = 0) -> None:
        """A request has come to the end of its line; one that was in line already leaves its place."""
        self.left(key)
        if priority not in self._lines:
            self._lines[priority] = PromptLine(self._s_per_token)
            self._lines = dict(sorted(self._lines.items()))
        self._lines[priority].arrived(key, arrived_s, tokens)
        self._priorities[key] = priority
        self._learn(arrived_s, tokens, priority)

    def _learn(self, arrived_s: float, tokens: int, priority: int) -> None:
        if priority == self._usual_priority:
            self._votes = min(self._votes + 1, MOST_VOTES)
        elif self._votes:
            self._votes -= 1
        else:
            self._usual_priority = priority
        if priority > self._usual_priority:  # the usual ones do not wait for it
            return
        passed_s, self._newest_s = max(0.0, arrived_s - self._newest_s), max(arrived_s, self._newest_s)
        self._tokens_per_s = self._tokens_per_s * exp(-passed_s / RATE_S) + tokens / RATE_S
        self._mean_tokens += MEAN_WEIGHT * (tokens - self._mean_tokens) if self._mean_tokens else tokens

    def price(self, s_per_token: float) -> None:
        """From now on a prompt token costs so much; the requests stay in line."""
        self._s_per_token = s_per_token
        for line in self._lines.values():
            line.price(s_per_token)

    def computed(self, key: Hashable, tokens: int) -> None:
        """See ``PromptLine``."""
        if (priority := self._priorities.get(key)) is not None:
            self._lines[priority].computed(key, tokens)

    def left(self, key: Hashable) -> None:
        """See ``PromptLine``."""
        if (priority := self._priorities.pop(key, None)) is None:
            return
        self._lines[priority].left(key)
        if not self._lines[priority]:
            del self._lines[priority]

    @property
    def tokens(self) -> int:
        """Prompt tokens still to be computed, of every line."""
        return sum(line.tokens for line in self._lines.values())

    @property
    def usual_tokens(self) -> int:
        """Of a prompt, in the mean of the last ones; 0 before the first."""
        return round(self._mean_tokens)

    def coming(self, now_s: float, within_s: float) -> float:
        """How many prompts come within so many seconds, at the rate of the last ones."""
        return self._rate(now_s) * within_s / self._mean_tokens if self._mean_tokens else 0.0

    def _rate(self, now_s: float) -> float:
        return self._tokens_per_s * exp(-max(0.0, now_s - self._newest_s) / RATE_S)

    def wait_of_next_s(self, now_s: float, ends_s: float) -> float:
        """Seconds to the first token of a usual request that comes right after a step has begun: it cannot be in the step.

        It waits for the step's end; then, at FP8 speed, come those that go before it, those that arrive during the step, and
        itself.
        """
        before = sum(line.tokens for priority, line in self._lines.items() if priority <= self._usual_priority)
        tokens = before + (ends_s - now_s) * self._rate(now_s) + self._mean_tokens
        return ends_s - now_s + tokens * self._s_per_token

    def latest_end_s(self, now_s: float, ttft_s: float) -> float:
        """Until when a step must have ended so that every request in line can have its first token within ``ttft_s``.

        The first of a line may have it with this step, all others with the full FP8 steps that follow. A request that has missed
        its deadline for certain is not asked for: else one that starves would decide for everybody for as long as it does.

        Returns:
            A time, perhaps one that has passed; infinity where nobody has a deadline.
        """
        latest_s, ahead = inf, 0
        for line in self._lines.values():
            line.give_up(now_s - MISSED_AFTER * ttft_s)
            if (oldest_s := line.oldest_s()) is not None:
                latest_s = min(latest_s, oldest_s + ttft_s, line.latest_start_s(ttft_s, ahead))
            ahead += line.tokens
        return latest_s


class DecodeHeap:
    """The decoding requests, by what their mean TPOT leaves."""

    def __init__(self) -> None:
        self._tpot_s = 0.0
        self._count = 0  # decode steps
        self._entered: dict[Hashable, tuple[float, int]] = {}  # (time of the first token, the count then)
        self._heap: list[tuple[float, Hashable]] = []

    def __len__(self) -> int:
        return len(self._entered)

    def entered(self, key: Hashable, first_s: float, tokens: int = 1) -> None:
        """It has ``tokens`` tokens now, the first since ``first_s``, and gets one more in every decode step."""
        at = self._count - (tokens - 1)
        self._entered[key] = first_s, at
        heappush(self._heap, (first_s - self._tpot_s * at, key))
        if (
            len(self._heap) > 2 * len(self._entered) + SPARE
        ):  # most policies never ask, which is when the top is cleared
            self._sort(self._tpot_s)

    def left(self, key: Hashable) -> None:
        """It is done, preempted or aborted. Unknown ones do no harm."""
        self._entered.pop(key, None)

    def stepped(self, steps: int = 1) -> None:
        """Every decoding request has got so many tokens."""
        self._count += steps

    def latest_end_s(self, tpot_s: float, steps: int = 1) -> float:
        """Until when the next ``steps`` steps must have ended so that no mean TPOT is above ``tpot_s`` then.

        Returns:
            A time, perhaps one that has passed; infinity where nothing decodes.
        """
        if tpot_s != self._tpot_s:
            self._sort(tpot_s)
        while self._heap and not self._is_of_now(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] + tpot_s * (self._count + steps) if self._heap else inf

    def _sort(self, tpot_s: float) -> None:
        self._tpot_s = tpot_s
        self._heap = [(first_s - tpot_s * at, key) for key, (first_s, at) in self._entered.items()]
        heapify(self._heap)

    def _is_of_now(self, value: float, key: Hashable) -> bool:
        """Whether this is what the request entered with last: it may have left, and come again."""
        entered = self._entered.get(key)
        return entered is not None and entered[0] - self._tpot_s * entered[1] == value


class StepSlack:
    """Both together: asked for every step, told of every request.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self.prompts = PromptLines(s_per_token)
        self.decodes = DecodeHeap()
        self._squeezed = 0.0  # share of the last steps with prompts

    def asked(self, late: str | None) -> None:
        """Learn what ``late`` said of a step with parts of prompts."""
        self._squeezed += SQUEEZED_WEIGHT * ((late == "tpot_slack") - self._squeezed)

    def left(self, key: Hashable) -> None:
        """A request is gone from wherever it was."""
        self.prompts.left(key)
        self.decodes.left(key)

    def reserve_s(self, rule: StepRule, times: StepTimes, now_s: float, decodes: int, budget_tokens: int) -> float:
        """What a step of decodes alone must leave of the TPOT deadline, in seconds.

        Args:
            rule: with ``decode_reserve_steps``.
            times: what steps take.
            now_s: when it would begin.
            decodes: tokens of the step.
            budget_tokens: the most tokens of a step.
        """
        if not rule.decode_reserve_steps:
            return 0.0
        tokens = min(decodes + self.prompts.usual_tokens, budget_tokens)
        share = rule.decode_reserve_share
        needed = min(1.0, self._squeezed / share) if share else 1.0
        steps = needed * min(rule.decode_reserve_steps, self.prompts.coming(now_s, RESERVE_S))
        return steps * times.predicted_s(Mode.FP16, tokens, with_prompts=True)

    def late(self, rule: StepRule, now_s: float, ends_s: float, steps: int = 1, reserve_s: float = 0.0) -> str | None:
        """Say which deadline a step would break, if any; what it computes of prompts has been noted already.

        Args:
            rule: with the deadlines.
            now_s: when the step would begin.
            ends_s: when it would end.
            steps: decode steps until then; more than one where others have been filled and not been counted yet.
            reserve_s: what it must leave of the TPOT deadline: ``reserve_s`` if it is one of decodes alone.

        Returns:
            ``"ttft_slack"``: of a request that waits or is in the step; ``"next_slack"``: of the next one to come;
            ``"tpot_slack"``: of one that decodes; or None.
        """
        if (ttft_s := rule.ttft_deadline_s) is not None:
            if ends_s > self.prompts.latest_end_s(now_s, ttft_s):
                return "ttft_slack"
            if self.prompts.wait_of_next_s(now_s, ends_s) > ttft_s:
                return "next_slack"
        # An answer is judged when it is whole: one long step just after its first token is made up for by a few more.
        tpot_s = rule.tpot_deadline_s
        if tpot_s is not None and ends_s + reserve_s > self.decodes.latest_end_s(
            tpot_s, steps + rule.tpot_grace_tokens
        ):
            return "tpot_slack"
        return None
