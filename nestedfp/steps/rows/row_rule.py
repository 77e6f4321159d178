"""Which rows of a step are exact and which fast: classes of answers, chosen by the deadlines of all requests.

Pure and standard library only, so that the engine's scheduler and the simulator run the same code. An answer is exact until a step
computes one of its rows in FP8; there is no way back. So the rule plans the line of prompts ahead, first come, first served,
all of it exact, and gives up as little as the deadlines ask for, in this order:

1. exact chunks of prompts in steps that keep the decodes' slack and a pace, then a slower pace;
2. exact decodes sit out a step of fast rows while their own slack lasts;
3. the longest unpinned prompt up to the first late one becomes fast, which may take the room of a step up to its longest time;
4. where prompts would still be late, the decodes that are not pinned and have no slack left become fast;
5. an engine that is behind, or overloaded (row_load.py), computes the most tokens in a second, all fast but the pinned ones.

A step whose rows would cost no less by class runs FP16 whole, and costs nobody anything. An engine that cannot compute both classes
in one step (``StepTimes.of_rows_s`` has no such time) runs every step that holds both in FP16: there exact decodes sit out the FP8
steps, and fast ones run in every step.
"""

from collections.abc import Sized
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from nestedfp.steps.rows.row_ahead import Ahead, StepRoom
from nestedfp.steps.rows.row_load import RowLoad
from nestedfp.steps.rows.row_state import MOST_PLANNED, Prompt, PromptChunk, RowPlan, RowState
from nestedfp.steps.step_times import LEAST_CHUNK_TOKENS, StepTimes

# Of the TPOT deadline, that a step may take: with exact chunks, at first and where the line would be late; with fast ones.
PACES = (0.9, 1.08)
FAST_SHARE = 1.05
HURRIED = 2.0  # the last, where a prompt will be late anyway and the decodes have slack for it
CHUNK_TOKENS = 16  # a chunk that does not end a prompt is a multiple
ALONE_CHUNK_TOKENS = 256  # of a prompt where nothing decodes and no step is short enough
LONGEST_PAUSE_S = 1.0
LEAST_STEP_S = 1e-6  # a step that is predicted from others may seem to take no time
LONG_LINE = 4  # full steps: with more, an engine that is behind fills steps to the last token
CLOSED_S = 0.2  # after decodes have become fast, new prompts are fast for so long


class _Limits(NamedTuple):
    """What a step may take, in seconds, where a chunk of an exact prompt is added and where one of a fast prompt is."""

    exact_s: float
    fast_s: float


class _Filled(NamedTuple):
    chunks: list[PromptChunk]
    exact_rows: int
    fast_rows: int


class RowRule:
    """Plans steps; remembers when it last demoted, and the ``load``."""

    def __init__(self) -> None:
        self._closed_until_s = -inf
        self.load = RowLoad()

    def plan(self, state: RowState, times: StepTimes) -> RowPlan:
        """Return the next step.

        Args:
            state: with at least one request; times that have passed are late.
            times: what steps take.
        """
        is_over = self.load.is_over(state, times)
        plan = _Planner(state, times, closed=state.now_s < self._closed_until_s, is_over=is_over).plan()
        self.load.computes(state, plan)
        if plan.demoted and not plan.is_whole:
            self._closed_until_s = state.now_s + CLOSED_S
        return plan


class _Planner:
    """One step's plan in the making.

    The line ahead is not filled step by step: every class of prompts has a room in a step, and a prompt takes its share of it.
    So a plan costs a few searches for a room and a few walks along the line, whatever is in it.
    """

    def __init__(self, state: RowState, times: StepTimes, *, closed: bool, is_over: bool) -> None:
        self._state, self._times, self._is_over = state, times, is_over
        self._known_s: dict[tuple[int, int, bool], float] = {}  # what steps take
        self._rooms: dict[tuple[int, int, float, bool, int], StepRoom] = {}
        self._line = state.line[:MOST_PLANNED]
        self._is_exact = [p.is_pinned or (p.is_exact and not (closed and not p.has_begun)) for p in self._line]
        self._exact_rows, self._fast_rows = self._rows_of(state.exact), self._rows_of(state.fast)
        now_s = state.now_s
        # A decode that not even a step of fast rows alone would bring in time is lost, and holds nobody up.
        soonest_s = now_s + self._takes(0, self._exact_rows + self._fast_rows, with_prompts=False)
        dues = [[d.due_s for d in decodes if d.due_s >= soonest_s] for decodes in (state.exact, state.fast)]
        self._slack_s = min((due for some in dues for due in some), default=inf) - now_s
        # How long exact decodes can wait: they need a step of their own by their first one's time.
        wake_s = min(dues[0], default=inf) - self._takes(self._exact_rows, self._fast_rows, with_prompts=False)
        self._pause_s = min(wake_s - now_s, LONGEST_PAUSE_S)
        # Half of the longest step is for prompts on any engine.
        self._longest_s = max(FAST_SHARE * state.step_s, 2 * (soonest_s - now_s))
        # A time that is known by no size says nothing of a chunk.
        self._pace_s = state.step_s if times.are_measured else inf
        self._hurries = False  # pinned prompts may take the time of the longest step
        # Where somebody is late anyway.
        self._hurried_s = max(self._longest_s, min(self._slack_s, HURRIED * state.step_s))

    def plan(self) -> RowPlan:
        every = tuple(range(len(self._state.exact)))
        if self._is_over or any(prompt.due_s == -inf for prompt in self._line):
            return self._fastest()
        if not self._line:
            return self._as_plan(_Filled([], self._exact_rows, self._fast_rows), every, (), "fast")
        limits, turned, late = self._least_turned()
        if late and any(self._line[i].is_pinned for i in late):
            self._hurries = True
            limits, turned, late = self._least_turned()
        if (turned or late) and self._exact_rows and (paused := self._paused_with(turned, late)):
            return paused
        for i in turned:
            self._is_exact[i] = False
        if late and (plan := self._last_resort(limits)):
            return plan
        if late:
            limits = limits._replace(fast_s=self._hurried_s)
        filled = self._fill(self._is_exact, self._exact_rows, self._fast_rows, limits)
        if not filled.chunks and not (self._exact_rows or self._fast_rows):
            filled = self._least(ALONE_CHUNK_TOKENS)
        elif not filled.chunks and (late or any(prompt.due_s == inf for prompt in self._line)):
            filled = self._least(LEAST_CHUNK_TOKENS)
        return self._as_plan(filled, every, (), "ttft_slack" if turned else "fast")

    # -- ways to go on -------------------------------------------------------------------------------------------------

    def _least_turned(self) -> tuple[_Limits, list[int], set[int]]:
        """Return the pace at which the fewest prompts must become fast, those prompts, and those that are late all the same."""
        found = []
        for share in PACES:
            limits = _Limits(min(self._slack_s, share * self._pace_s), self._longest_s)
            turned, late = self._turned(limits)
            found.append((limits, turned, late))
            if not turned and not late:
                break
        return min(found, key=lambda one: (len(one[2]), len(one[1])))

    def _paused_with(self, turned: list[int], late: set[int]) -> RowPlan | None:
        """The step of fast rows alone, with the fewest of the prompts that would have to become fast, if nobody is late then."""

        def classes(count: int) -> list[bool]:
            chosen = set(turned[:count])
            return [is_exact and i not in chosen for i, is_exact in enumerate(self._is_exact)]

        def holds(count: int) -> bool:
            return all(
                at_s <= p.due_s for at_s, p in zip(self._pausing(classes(count), rounded=True), self._line, strict=True)
            )

        low, high = 0, len(turned) - (not late)
        if high < 0 or not holds(high):
            return None
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return self._paused(classes(low))

    def _paused(self, classes: list[bool]) -> RowPlan | None:
        """The step of fast rows alone, if it computes anything of a prompt."""
        filled = self._fill(classes, 0, self._fast_rows, _Limits(-inf, min(self._longest_s, self._pause_s)))
        return self._as_plan(filled, (), (), "ttft_slack") if filled.chunks else None

    def _last_resort(self, limits: _Limits) -> RowPlan | None:
        """Prompts are late whatever happens to their own class: have the exact decodes wait, or demote those that cannot."""
        state, loose = self._state, self._loose()
        classes = [prompt.is_pinned for prompt in self._line]
        kept, fast_rows = self._exact_rows - self._rows_of(loose), self._fast_rows + self._rows_of(loose)
        if kept and self._rests(self._hurried_s, kept, fast_rows):
            kept = 0
        demoting = _Limits(min(self._slack_s, PACES[-1] * self._pace_s), self._hurried_s)
        demoted_s = self._ends(classes, kept, fast_rows, demoting)
        least = self._lateness_s(self._ends(self._is_exact, self._exact_rows, self._fast_rows, limits))
        if (
            self._exact_rows
            and self._lateness_s(self._pausing(self._is_exact, rounded=False)) < least
            and (paused := self._paused(self._is_exact))
        ):
            return paused
        if not loose or self._lateness_s(demoted_s) >= least:
            return None
        filled = self._fill(classes, kept, fast_rows, demoting)
        # Those whose slack lasts for this step and the next wait.
        next_s = state.now_s + self._takes(*filled[1:], with_prompts=True)
        next_s += self._takes(self._exact_rows, self._fast_rows, with_prompts=False)
        plan = self._demoting([i for i in loose if state.exact[i].due_s < next_s], classes, demoting)
        return plan if state.fast or plan.exact or plan.demoted or plan.chunks else None

    def _fastest(self) -> RowPlan:
        """The engine is behind: the most tokens in a second, and nothing exact but pinned requests."""
        is_long = sum(prompt.left_tokens for prompt in self._line) > LONG_LINE * self._state.budget_tokens
        limit_s = inf if is_long else max(self._longest_s, HURRIED * self._state.step_s)
        loose, classes = self._loose(), [prompt.is_pinned for prompt in self._line]
        plan = self._demoting(loose, classes, _Limits(limit_s, limit_s))
        return plan if plan.chunks else self._demoting(loose, classes, _Limits(inf, inf))

    def _rests(self, takes_s: float, kept: int, fast_rows: int) -> bool:
        """Whether the pinned decodes, so many, have slack for a step without them: one alone costs a step what all do."""
        next_s = self._state.now_s + takes_s + self._takes(kept, fast_rows, with_prompts=True)
        return not self._line[0].is_pinned and all(d.due_s >= next_s for d in self._state.exact if d.is_pinned)

    def _demoting(self, demoted: list[int], classes: list[bool], limits: _Limits) -> RowPlan:
        kept = tuple(i for i, decode in enumerate(self._state.exact) if decode.is_pinned)
        kept_rows, fast_rows = self._rows_of(kept), self._fast_rows + self._rows_of(demoted)
        if kept:
            filled = self._fill(classes, 0, fast_rows, limits._replace(exact_s=-inf))
            takes_s = self._takes(*filled[1:], with_prompts=bool(filled.chunks))
            if filled.chunks and self._rests(takes_s, kept_rows, fast_rows):
                return self._as_plan(filled, (), tuple(demoted), "tpot_slack" if demoted else "ttft_slack")
        filled = self._fill(classes, kept_rows, fast_rows, limits)
        return self._as_plan(filled, kept, tuple(demoted), "tpot_slack" if demoted else "ttft_slack")

    def _rows_of(self, decodes: Sized) -> int:
        return self._state.decode_rows * len(decodes)

    def _loose(self) -> list[int]:
        return [i for i, decode in enumerate(self._state.exact) if not decode.is_pinned]

    def _as_plan(self, filled: _Filled, exact: tuple[int, ...], demoted: tuple[int, ...], reason: str) -> RowPlan:
        is_whole = not self._times.classes_pay(*filled[1:], with_prompts=bool(filled.chunks))
        return RowPlan(exact, demoted, tuple(filled.chunks), is_whole, reason)

    # -- a step --------------------------------------------------------------------------------------------------------

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

    def _limit_s(self, prompt: Prompt, limits: _Limits, *, is_exact: bool) -> float:
        if self._hurries and prompt.is_pinned and limits.exact_s > 0:
            return max(limits.exact_s, self._hurried_s)
        if not prompt.is_cut and limits.exact_s > 0:
            return max(self._longest_s, self._slack_s)
        return limits.exact_s if is_exact else limits.fast_s

    def _fill(self, classes: list[bool], exact_rows: int, fast_rows: int, limits: _Limits) -> _Filled:
        """Fill the step with chunks, in turn, while it stays within its limits."""
        chunks: list[PromptChunk] = []
        places, full_s = self._state.places, {True: -inf, False: -inf}  # by class, the longest limit that is reached
        for i, prompt in enumerate(self._line):
            is_exact = classes[i]
            limit_s = self._limit_s(prompt, limits, is_exact=is_exact)
            if limit_s <= max(0.0, full_s[is_exact]):
                continue
            if not prompt.has_begun:
                if places <= 0:
                    break
                places -= 1
            most = min(prompt.left_tokens, self._state.budget_tokens - exact_rows - fast_rows)
            if most <= 0:
                break
            tokens = self._most_within(limit_s, most, exact_rows, fast_rows, is_exact=is_exact)
            if tokens < most:
                full_s[is_exact] = limit_s
            if tokens < (min(LEAST_CHUNK_TOKENS, most) if prompt.is_cut else prompt.left_tokens):
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

    def _least(self, most: int) -> _Filled:
        """Nothing fits: begin with the first prompt all the same."""
        prompt, exact_rows, fast_rows = self._line[0], self._exact_rows, self._fast_rows
        most = most if prompt.is_cut else prompt.left_tokens
        tokens = min(prompt.left_tokens, most, self._state.budget_tokens - exact_rows - fast_rows)
        if tokens <= 0 or (not prompt.has_begun and not self._state.places):
            return _Filled([], exact_rows, fast_rows)
        is_exact = self._is_exact[0]
        rows = (exact_rows + tokens, fast_rows) if is_exact else (exact_rows, fast_rows + tokens)
        return _Filled([PromptChunk(0, tokens, is_exact)], *rows)

    # -- the line, planned ahead ---------------------------------------------------------------------------------------

    def _room(self, exact_rows: int, fast_rows: int, limit_s: float, *, is_exact: bool, least: int) -> StepRoom:
        key = exact_rows, fast_rows, limit_s, is_exact, least
        if (known := self._rooms.get(key)) is not None:
            return known
        most = max(0, self._state.budget_tokens - exact_rows - fast_rows)
        tokens = (
            self._most_within(limit_s, most, exact_rows, fast_rows, is_exact=is_exact) if limit_s > 0 and most else 0
        )
        tokens = max(tokens, min(least, most))
        rows = (exact_rows + tokens, fast_rows) if is_exact else (exact_rows, fast_rows + tokens)
        room = self._rooms[key] = StepRoom(tokens, self._takes(*rows, with_prompts=tokens > 0))
        return room

    def _ahead(self, exact_rows: int, fast_rows: int, limits: _Limits) -> Ahead:
        later = _Limits(PACES[0] * self._pace_s, self._longest_s)

        def room(limit_s: float, *, is_exact: bool, least: int = LEAST_CHUNK_TOKENS) -> StepRoom:
            return self._room(exact_rows, fast_rows, limit_s, is_exact=is_exact, least=least)

        exact = room(later.exact_s, is_exact=True)
        return Ahead(
            self._state.now_s,
            first=room(limits.exact_s, is_exact=True, least=0),
            exact=exact,
            fast=room(later.fast_s, is_exact=False),
            pinned=room(self._hurried_s, is_exact=True) if self._hurries else exact,
        )

    def _turned(self, limits: _Limits) -> tuple[list[int], set[int]]:
        """Return which prompts must become fast, always the longest up to the first late one, and who is late all the same."""
        ahead = self._ahead(self._exact_rows, self._fast_rows, limits)
        turned: list[int] = []
        late: set[int] = set()
        loose: list[tuple[int, int]] = []
        for i, prompt in enumerate(self._line):
            ahead.comes(prompt, is_exact=self._is_exact[i])
            if self._is_exact[i] and not prompt.is_pinned:
                heappush(loose, (-prompt.left_tokens, i))
            while (is_late := ahead.end_s() > prompt.due_s) and loose:
                turned.append(heappop(loose)[1])
                ahead.turns(self._line[turned[-1]])
            if is_late:
                late.add(i)
        return turned, late

    def _ends(self, classes: list[bool], exact_rows: int, fast_rows: int, limits: _Limits) -> list[float]:
        """Return when the prompts have their first tokens, where those of these classes are exact beside so many decodes.

        Args:
            classes: of the prompts, whether they are exact.
            exact_rows: decodes, in every step.
            fast_rows: decodes, in every step.
            limits: of the first step; those after it are not bound by the present slack.
        """
        ahead, ends_s = self._ahead(exact_rows, fast_rows, limits), []
        for prompt, is_exact in zip(self._line, classes, strict=True):
            ahead.comes(prompt, is_exact=is_exact)
            ends_s.append(ahead.end_s(rounded=False))
        return ends_s

    def _pausing(self, classes: list[bool], *, rounded: bool) -> list[float]:
        """Return the same where exact decodes sit out as many steps as they can, which compute fast prompts alone."""
        limit_s = min(self._longest_s, self._pause_s)
        paused = self._room(0, self._fast_rows, limit_s, is_exact=False, least=0)
        steps = int(self._pause_s / max(paused.takes_s, LEAST_STEP_S)) if paused.tokens else 0
        now_s, ends_s = self._state.now_s, [inf] * len(self._line)
        done, left = 0, []
        for i, prompt in enumerate(self._line):
            if not classes[i] and done + prompt.left_tokens <= steps * paused.tokens:
                done += prompt.left_tokens
                steps_done = done / paused.tokens
                ends_s[i] = now_s + (ceil(steps_done) if rounded else steps_done) * paused.takes_s
            else:
                left.append(i)
        passed_s = ceil(done / paused.tokens) * paused.takes_s if done else 0.0
        ahead = self._ahead(self._exact_rows, self._fast_rows, _Limits(PACES[0] * self._pace_s, self._longest_s))
        for i in left:
            ahead.comes(self._line[i], is_exact=classes[i])
            ends_s[i] = ahead.end_s(rounded=rounded) + passed_s
        return ends_s

    def _lateness_s(self, ends_s: list[float]) -> float:
        return sum(max(0.0, at_s - prompt.due_s) for at_s, prompt in zip(ends_s, self._line, strict=True))
