"""Which rows of a step are exact and which fast: classes of answers, chosen by the deadlines of all requests.

Pure and standard library only, so that the engine's scheduler and the simulator run the same code. An answer is exact until a step
computes one of its rows in FP8; there is no way back. So the rule plans the line of prompts ahead, first come, first served,
all of it exact, and gives up as little as the deadlines ask for, in this order:

1. exact chunks of prompts in steps that keep the decodes' slack and a pace, then a slower pace;
2. exact decodes sit out a step of fast rows while their own slack lasts;
3. the longest unpinned prompt up to the first late one becomes fast, which may take the room of a step up to its longest time;
4. where prompts would still be late, the decodes that are not pinned and have no slack left become fast.

A step whose rows would cost no less by class runs FP16 whole, and costs nobody anything. An engine that cannot compute both classes
in one step (``StepTimes.of_rows_s`` has no such time) runs every step that holds both in FP16.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from nestedfp.steps.step_slack import LEAST_CHUNK_TOKENS, MISSED_AFTER, StepTimes

# Of the TPOT deadline, that a step may take: with exact chunks, at first and where the line would be late; with fast ones.
PACES = (0.9, 1.08)
FAST_SHARE = 1.05
HURRIED = 2.0  # the last, where a prompt will be late anyway and the decodes have slack for it
CHUNK_TOKENS = 16  # a chunk that does not end a prompt is a multiple
ALONE_CHUNK_TOKENS = 256  # of a prompt where nothing decodes and no step is short enough
MOST_PLANNED = 48  # prompts of the line that are looked at
MOST_STEPS = 16  # planned ahead; what comes after them is taken to come as fast
CLOSED_S = 0.2  # after decodes have become fast, new prompts are fast for so long


class Prompt(NamedTuple):
    """A prompt in line."""

    left_tokens: int  # still to be computed
    due_s: float  # its first token
    is_exact: (
        bool  # nothing of it has been computed in FP8, nobody asked for a fast answer, and it may still be in time
    )
    is_pinned: bool
    has_begun: bool  # it has a place among those that run


class Decode(NamedTuple):
    """A request that decodes."""

    due_s: float  # its next token
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class RowState:
    """An engine before a step; times are seconds of one clock."""

    now_s: float  # when the step begins
    exact: Sequence[Decode]
    fast: Sequence[Decode]
    line: Sequence[Prompt]  # in the order in which prompts are to be computed
    places: int  # for prompts that have not begun
    budget_tokens: int
    step_s: float  # the TPOT deadline, which steps may take


class PromptChunk(NamedTuple):
    """Tokens of a prompt in the step."""

    prompt: int  # index in the line
    tokens: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A step. Exact decodes that are in neither tuple sit it out; all fast ones run.

    Attributes:
        exact: indices of the exact decodes that run as such.
        demoted: indices of the exact decodes that run, and are fast from now on.
        chunks: of prompts.
        is_whole: every row is computed in FP16, and no class changes.
        reason: why a row is fast that was exact or might have been: ``"ttft_slack"``, ``"tpot_slack"`` (decodes were demoted);
            ``"fast"``: those were fast before.
    """

    exact: tuple[int, ...]
    demoted: tuple[int, ...]
    chunks: tuple[PromptChunk, ...]
    is_whole: bool
    reason: str = "fast"


class _Limits(NamedTuple):
    """What a step may take, in seconds, where a chunk of an exact prompt is added and where one of a fast prompt is."""

    exact_s: float
    fast_s: float


class _Filled(NamedTuple):
    chunks: list[PromptChunk]
    exact_rows: int
    fast_rows: int


def first_due_s(since_s: float, ttft_s: float, now_s: float) -> float:
    """Return when a prompt that waits since then is due; infinity once it has missed its objective for certain."""
    return since_s + ttft_s if now_s - since_s < MISSED_AFTER * ttft_s else inf


class RowRule:
    """Plans steps; remembers when it last demoted."""

    def __init__(self) -> None:
        self._closed_until_s = -inf

    def plan(self, state: RowState, times: StepTimes) -> RowPlan:
        """Return the next step.

        Args:
            state: with at least one request; times that have passed are late.
            times: what steps take.
        """
        planner = _Planner(state, times, closed=state.now_s < self._closed_until_s)
        plan = planner.plan()
        if plan.demoted and not plan.is_whole:
            self._closed_until_s = state.now_s + CLOSED_S
        return plan


class _Planner:
    """One step's plan in the making."""

    def __init__(self, state: RowState, times: StepTimes, *, closed: bool) -> None:
        self._state, self._times = state, times
        self._known_s: dict[tuple[int, int, bool], float] = {}  # what steps take
        self._line = state.line[:MOST_PLANNED]
        self._is_exact = [p.is_pinned or (p.is_exact and not (closed and not p.has_begun)) for p in self._line]
        self._exact_rows, self._fast_rows = len(state.exact), len(state.fast)
        now_s = state.now_s
        # A decode that not even a step of fast rows alone would bring in time is lost, and holds nobody up.
        soonest_s = now_s + self._takes(0, self._exact_rows + self._fast_rows, with_prompts=False)
        dues = [[d.due_s for d in decodes if d.due_s >= soonest_s] for decodes in (state.exact, state.fast)]
        self._slack_s = min((due for some in dues for due in some), default=inf) - now_s
        # Until when exact decodes can wait: they need a step of their own by their first one's time.
        self._wake_s = min(dues[0], default=inf) - self._takes(self._exact_rows, self._fast_rows, with_prompts=False)
        self._longest_s = max(
            FAST_SHARE * state.step_s, 2 * (soonest_s - now_s)
        )  # half of it for prompts on any engine
        self._hurries = False  # pinned prompts may take the time of the longest step
        self._hurried_s = max(
            self._longest_s, min(self._slack_s, HURRIED * state.step_s)
        )  # where somebody is late anyway

    def plan(self) -> RowPlan:
        state = self._state
        hopeless: set[int] = set()  # late whatever happens
        reason, turned = "fast", 1  # how many prompts become fast at a time: a few rounds must do for any line
        while True:
            limits, at = self._at_a_pace(hopeless)
            if at is None:
                break
            can_pause = bool(self._exact_rows) and not all(self._is_exact[: at + 1])
            if can_pause and self._late_in(self._pausing(), hopeless) is None and (paused := self._paused()):
                return paused
            if loose := [i for i in range(at + 1) if self._is_exact[i] and not self._line[i].is_pinned]:
                for i in sorted(loose, key=lambda i: -self._line[i].left_tokens)[:turned]:
                    self._is_exact[i] = False
                turned, reason = 2 * turned, "ttft_slack"
            elif self._line[at].is_pinned and not self._hurries:
                self._hurries = True
            else:
                # And who will be late behind it without an exact prompt before that could become fast.
                behind = next(
                    (i for i, p in enumerate(self._line) if self._is_exact[i] and not p.is_pinned), MOST_PLANNED
                )
                steps = self._steps(self._is_exact, self._exact_rows, self._fast_rows, limits)
                hopeless |= {at} | {i for i, at_s in steps if i < behind and at_s > self._line[i].due_s}
        if hopeless and self._exact_rows and (plan := self._last_resort(limits)):
            return plan
        if hopeless:
            limits = limits._replace(fast_s=self._hurried_s)
        filled = self._fill(self._is_exact, self._left(), self._exact_rows, self._fast_rows, limits)
        if not filled.chunks and self._line and not (state.exact or state.fast):
            filled = self._least(self._is_exact, self._left(), 0, 0, ALONE_CHUNK_TOKENS)
        elif not filled.chunks and (hopeless or any(prompt.due_s == inf for prompt in self._line)):
            filled = self._least(self._is_exact, self._left(), self._exact_rows, self._fast_rows, LEAST_CHUNK_TOKENS)
        return self._as_plan(filled, tuple(range(self._exact_rows)), (), reason)

    # -- ways to go on -------------------------------------------------------------------------------------------------

    def _at_a_pace(self, hopeless: set[int]) -> tuple[_Limits, int | None]:
        """Return the first pace at which nobody is late, or the last one with the first prompt that is."""
        at = None
        for share in PACES:
            pace_s = share * self._state.step_s
            limits = _Limits(min(self._slack_s, pace_s), self._longest_s)
            steps = self._steps(self._is_exact, self._exact_rows, self._fast_rows, limits)
            if (at := self._late_in(steps, hopeless)) is None:
                break
        return limits, at

    def _pausing(self) -> Iterator[tuple[int, float]]:
        return self._steps(self._is_exact, self._exact_rows, self._fast_rows, self._paused_limits(0.0), pausing=True)

    def _paused_limits(self, passed_s: float) -> _Limits:
        left_s = self._wake_s - self._state.now_s - passed_s
        return _Limits(-inf, min(self._longest_s, left_s))

    def _paused(self) -> RowPlan | None:
        """The step of fast rows alone, if it computes anything of a prompt."""
        filled = self._fill(self._is_exact, self._left(), 0, self._fast_rows, self._paused_limits(0.0))
        return self._as_plan(filled, (), (), "ttft_slack") if filled.chunks else None

    def _last_resort(self, limits: _Limits) -> RowPlan | None:
        """Prompts are late whatever happens to their own class: have the exact decodes wait, or demote those that cannot."""
        least_s = self._lateness_s(self._steps(self._is_exact, self._exact_rows, self._fast_rows, limits))
        if self._lateness_s(self._pausing()) < least_s and (paused := self._paused()):
            return paused
        state = self._state
        loose = [i for i, decode in enumerate(state.exact) if not decode.is_pinned]
        if not loose:
            return None
        classes = [prompt.is_pinned for prompt in self._line]
        kept = tuple(i for i, decode in enumerate(state.exact) if decode.is_pinned)
        last_s = PACES[-1] * state.step_s
        limits = _Limits(min(self._slack_s, last_s), self._hurried_s)
        steps = self._steps(classes, len(kept), self._fast_rows + len(loose), limits)
        if self._lateness_s(steps) >= least_s:
            return None
        self._is_exact = classes
        filled = self._fill(self._is_exact, self._left(), len(kept), self._fast_rows + len(loose), limits)
        # Those whose slack lasts for this step and the next wait.
        next_s = state.now_s + self._takes(*filled[1:], with_prompts=True)
        next_s += self._takes(self._exact_rows, self._fast_rows, with_prompts=False)
        demoted = tuple(i for i in loose if state.exact[i].due_s < next_s)
        filled = self._fill(self._is_exact, self._left(), len(kept), self._fast_rows + len(demoted), limits)
        if not filled.exact_rows + filled.fast_rows:
            return None
        return self._as_plan(filled, kept, demoted, "tpot_slack" if demoted else "ttft_slack")

    def _as_plan(self, filled: _Filled, exact: tuple[int, ...], demoted: tuple[int, ...], reason: str) -> RowPlan:
        is_whole = not self._times.classes_pay(*filled[1:], with_prompts=bool(filled.chunks))
        return RowPlan(exact, demoted, tuple(filled.chunks), is_whole, reason)

    # -- the line, planned ahead ---------------------------------------------------------------------------------------

    def _left(self) -> list[int]:
        return [prompt.left_tokens for prompt in self._line]

    def _takes(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> float:
        if exact_rows + fast_rows == 0:
            return 0.0
        key = exact_rows, fast_rows, with_prompts
        if (known_s := self._known_s.get(key)) is None:
            known_s = self._times.of_rows_s(exact_rows, fast_rows, with_prompts=with_prompts)
            if exact_rows and fast_rows:
                known_s = min(known_s, self._times.of_rows_s(exact_rows + fast_rows, 0, with_prompts=with_prompts))
            self._known_s[key] = known_s
        return known_s

    def _fill(self, classes: list[bool], left: list[int], exact_rows: int, fast_rows: int, limits: _Limits) -> _Filled:
        """Fill a step with chunks, in turn, while it stays within its limits."""
        chunks = []
        places = self._state.places
        for i, prompt in enumerate(self._line):
            is_exact = classes[i]
            limit_s = limits.exact_s if is_exact else limits.fast_s
            if self._hurries and prompt.is_pinned and limits.exact_s > 0:
                limit_s = self._hurried_s
            if left[i] <= 0 or limit_s <= 0:
                continue
            if not prompt.has_begun and left[i] == prompt.left_tokens:
                if places <= 0:
                    break
                places -= 1
            most = min(left[i], self._state.budget_tokens - exact_rows - fast_rows)
            if most <= 0:
                break
            tokens = self._most_within(limit_s, most, exact_rows, fast_rows, is_exact=is_exact)
            if tokens < min(LEAST_CHUNK_TOKENS, most):
                continue
            chunks.append(PromptChunk(i, tokens, is_exact))
            if is_exact:
                exact_rows += tokens
            else:
                fast_rows += tokens
        return _Filled(chunks, exact_rows, fast_rows)

    def _most_within(self, limit_s: float, most: int, exact_rows: int, fast_rows: int, *, is_exact: bool) -> int:
        def fits(tokens: int) -> bool:
            rows = (exact_rows + tokens, fast_rows) if is_exact else (exact_rows, fast_rows + tokens)
            return self._takes(*rows, with_prompts=True) <= limit_s

        if fits(most):
            return most
        low, high = 0, (most - 1) // CHUNK_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle * CHUNK_TOKENS):
                low = middle
            else:
                high = middle - 1
        return low * CHUNK_TOKENS

    def _least(self, classes: list[bool], left: list[int], exact_rows: int, fast_rows: int, most: int) -> _Filled:
        """Nothing fits: begin with the first prompt all the same."""
        i = next(i for i, tokens in enumerate(left) if tokens > 0)
        tokens = min(left[i], most, self._state.budget_tokens - exact_rows - fast_rows)
        is_exact = classes[i]
        if tokens <= 0 or (not self._line[i].has_begun and not self._state.places):
            return _Filled([], exact_rows, fast_rows)
        rows = (exact_rows + tokens, fast_rows) if is_exact else (exact_rows, fast_rows + tokens)
        return _Filled([PromptChunk(i, tokens, is_exact)], *rows)

    def _steps(
        self, classes: list[bool], exact_rows: int, fast_rows: int, first: _Limits, *, pausing: bool = False
    ) -> Iterator[tuple[int, float]]:
        """Yield every prompt of the line with the time of its first token, were the steps from now on as told.

        Args:
            classes: of the prompts, whether they are exact.
            exact_rows: decodes, in every step.
            fast_rows: decodes, in every step.
            first: of the first step; those after it are not bound by the present slack.
            pausing: exact decodes sit out as many steps as they can.
        """
        left, waiting = self._left(), len(self._line)
        passed_s, later = 0.0, _Limits(PACES[0] * self._state.step_s, self._longest_s)
        limits = first
        for _ in range(MOST_STEPS):
            if not waiting:
                return
            filled = self._fill(classes, left, 0 if pausing else exact_rows, fast_rows, limits)
            if pausing and not filled.chunks:
                pausing, limits = False, later
                continue
            if not filled.chunks and limits is later:
                filled = self._least(classes, left, exact_rows, fast_rows, LEAST_CHUNK_TOKENS)
                if not filled.chunks:
                    return
            passed_s += self._takes(*filled[1:], with_prompts=bool(filled.chunks))
            limits = self._paused_limits(passed_s) if pausing else later
            for i, tokens, _ in filled.chunks:
                left[i] -= tokens
                if left[i] == 0:
                    waiting -= 1
                    yield i, self._state.now_s + passed_s
        done = sum(prompt.left_tokens for prompt in self._line) - sum(left)
        before = 0
        for i, tokens in enumerate(left):
            before += tokens
            if tokens:
                yield i, self._state.now_s + passed_s * (1 + before / max(1, done))

    def _late_in(self, steps: Iterator[tuple[int, float]], hopeless: set[int]) -> int | None:
        return next((i for i, at_s in steps if at_s > self._line[i].due_s and i not in hopeless), None)

    def _lateness_s(self, steps: Iterator[tuple[int, float]]) -> float:
        return sum(max(0.0, at_s - self._line[i].due_s) for i, at_s in steps)
