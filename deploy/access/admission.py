"""Admission control: what a replica takes at once, and whom it refuses. Pure.

Bounded are sequences and tokens, in front of the engine and in it. The controller lowers both bounds when FP8 alone cannot
hold the SLO. Requests that are in stay in; those that come then are refused with a message and a time to try again, those of a
lower class first. A request with a queue deadline is refused at once where the engine is not expected to begin it in time.

Each call takes the same short time however many requests there are.
"""

import enum
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from deploy.access.pace import Pace
from deploy.access.priority import Priority
from deploy.haproxy.haproxy_config import RETRY_AFTER_S

SEQUENCES_IN_QUEUE = 4  # without a configured limit, the controller's scale counts from this many times the sequences
TOKENS_IN_QUEUE = 4  # without a configured bound, tokens inside at most: this many times those that the KV cache holds
USUAL_OUTPUT_TOKENS = 256.0  # of an answer, until there have been some
USUAL_WEIGHT = 1 / 64  # of one answer in that mean
# Long answers are inside for longer, so that those inside are longer than answers are in the mean: twice, where lengths are
# exponentially distributed.
LENGTH_BIAS = 2
MARGIN = 0.8  # of a deadline: so much of it may be expected to pass in the queue
LONGEST_RETRY_S = 60


class Reason(enum.StrEnum):
    """Why a request was refused."""

    SEQUENCES = "sequences"  # too many inside
    TOKENS = "tokens"  # too many inside
    DEADLINE = "deadline"  # the engine was not expected to begin it in time
    LATE = "late"  # its time was up before the engine had it


class NoRoom(Exception):
    """A request is refused; after ``retry_after_s``, whole seconds, it may be otherwise."""

    def __init__(self, reason: Reason, priority: Priority, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason, self.priority, self.retry_after_s = reason, priority, retry_after_s


class Asked(NamedTuple):
    """What a request asks of the engine."""

    prompts: int = 1
    samples: int = 1  # sequences for each prompt
    prompt_tokens: int = 0  # of all prompts; an estimate until they are tokenized
    output_tokens: int | None = 0  # of each sequence at most; None: the request sets no limit

    @property
    def sequences(self) -> int:
        """That the engine computes."""
        return self.prompts * self.samples


ONE = Asked()  # sequence, of nobody knows how many tokens


SHARES = {Priority.HIGH: 1.25, Priority.NORMAL: 1.0, Priority.BATCH: 0.5}  # of both bounds, that a class may fill


class Place:
    """A request that is inside; made by ``Admission.enter``. Wants exactly one ``leave``."""

    __slots__ = ("_admission", "_asked", "_estimate", "_open_prompts", "_output_tokens", "priority", "tokens")

    def __init__(self, admission: "Admission", asked: Asked, priority: Priority, tokens: int) -> None:
        self._admission, self._asked, self.priority, self.tokens = admission, asked, priority, tokens
        self._estimate = tokens // asked.prompts  # of each prompt and its answers
        self._open_prompts = asked.prompts
        self._output_tokens = admission.expected_output_tokens(asked)

    @property
    def sequences(self) -> int:
        """That the engine computes."""
        return self._asked.sequences

    def settle(self, prompt_tokens: int, most_output_tokens: int) -> None:
        """A prompt has been tokenized, and its answers can have so many tokens each: count it as that instead of the estimate.

        Calls beyond the request's prompts change nothing: beams go on from prompts that are counted already.

        Raises:
            NoRoom: the request is more than twice as large as was thought, and there is no room for it; nothing changes then.
        """
        if not self._open_prompts:
            return
        self._open_prompts -= 1
        door = self._admission
        exact = self._asked.samples * (prompt_tokens + min(self._output_tokens, most_output_tokens))
        more = exact - self._estimate
        # A chat's template and tools, which no estimate knows, are no reason to refuse what is in already.
        if more > self.tokens and door.inside > self.sequences:
            door._check_tokens(more, SHARES[self.priority], self.priority)
        self.tokens += more
        door.tokens_inside += more

    def leave(self, completion_tokens: int = 0) -> None:
        """The request has ended, however it did.

        Without completion tokens, of all its sequences, the engine has not answered, and no place became free in it.
        """
        door = self._admission
        assert door._by_class[self.priority] >= self.sequences, "leave without enter"
        door._advance()
        if completion_tokens:
            mean = completion_tokens / self.sequences
            door._usual_output_tokens += USUAL_WEIGHT * (mean - door._usual_output_tokens)
            if door._has_queue:
                door._pace.freed(self.sequences, self.tokens)
        door.inside -= self.sequences
        door._by_class[self.priority] -= self.sequences
        door.tokens_inside -= self.tokens


class Admission:
    """Admission control of one replica.

    A request counts as the sequences that it makes the engine compute, its prompts times ``n``, and as the tokens of these:
    prompt and answer. An answer counts as twice what answers have been lately, or as its limit where that is less: many
    clients state a limit that they never come near, and to count it in full would refuse requests while the engine has room.

    Args:
        limit: sequences inside at most; None: as many as come, until the controller lowers the scale.
        sequences: that the engine computes at once.
        tokens: inside at most; None: as many as come.
        longest: tokens that prompt and answer of a sequence can have together, the model's context; None: nobody knows.
        in_order: the engine computes in the order of arrival; False: by priority.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int | None,
        sequences: int,
        tokens: int | None = None,
        longest: int | None = None,
        in_order: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configured, self._configured_tokens = limit, tokens
        self.longest = longest
        self._sequences = self._slots = sequences
        self._in_order = in_order
        self._clock = clock
        self._pace = Pace(clock())
        self._queued_before = False
        self._running_before = 0
        self._usual_output_tokens = USUAL_OUTPUT_TOKENS
        self._by_class = dict.fromkeys(Priority, 0)  # sequences inside
        self.scale = 1.0
        self.inside = 0  # sequences
        self.tokens_inside = 0
        self._turned_away = 0.0
        self.refusals = {(reason, priority): 0 for reason in Reason for priority in Priority}

    @property
    def limit(self) -> int | None:
        """Sequences inside at most; None: no limit. Never less than one."""
        if self._configured is None and self.scale >= 1.0:
            return None
        return max(1, math.floor(self._whole_limit * self.scale))

    @property
    def _whole_limit(self) -> int:
        return self._configured or SEQUENCES_IN_QUEUE * self._sequences

    @property
    def inside_share(self) -> float:
        """What is inside over the limits at scale 1, of sequences or of tokens, whichever is nearer to its own."""
        of_tokens = self.tokens_inside / self._configured_tokens if self._configured_tokens else 0.0
        return max(self.inside / self._whole_limit, of_tokens)

    @property
    def token_limit(self) -> int | None:
        """Tokens inside at most; None: no limit. Never less than one."""
        return None if self._configured_tokens is None else max(1, math.floor(self._configured_tokens * self.scale))

    @property
    def refused(self) -> int:
        """Requests since the start that no engine got: what the controller counts as load beside those that were let in."""
        return math.floor(self._turned_away + 1e-6)

    @property
    def usual_output_tokens(self) -> int:
        """Mean length of late answers, in tokens."""
        return max(1, round(self._usual_output_tokens))

    def expected_output_tokens(self, asked: Asked) -> int:
        """Return the tokens that each sequence of a request counts for its answer."""
        expected = LENGTH_BIAS * self.usual_output_tokens
        return expected if asked.output_tokens is None else min(asked.output_tokens, expected)

    # -- requests ------------------------------------------------------------------------------------------------------

    def enter(self, asked: Asked = ONE, priority: Priority = Priority.NORMAL, deadline_s: float | None = None) -> Place:
        """Let a request in.

        One that is larger than a bound gets in where it is alone: it could never come otherwise.

        Args:
            deadline_s: from now, until when the engine must have begun it; None: it can wait.

        Raises:
            NoRoom: it must come again later; counted by reason and class, and as load once ``turned_away`` hears of it.
        """
        self._advance()
        tokens = asked.samples * (asked.prompt_tokens + asked.prompts * self.expected_output_tokens(asked))
        if self.longest is not None:  # what asks for more is refused for that, or cut, once it has been read
            tokens = min(tokens, asked.sequences * self.longest)
        if self.inside:
            share = SHARES[priority]
            self._check_sequences(asked.sequences, share, priority)
            self._check_tokens(tokens, share, priority)
            if deadline_s is not None:
                self._check_deadline(deadline_s, priority)
        self.inside += asked.sequences
        self._by_class[priority] += asked.sequences
        self.tokens_inside += tokens
        return Place(self, asked, priority, tokens)

    def late(self, priority: Priority) -> NoRoom:
        """Return what a request hears, and count it, whose queue deadline was up in front of the engine."""
        message = "overloaded: this request could not be given to the engine before its queue deadline"
        refusal = self._refusal(Reason.LATE, priority, message, self.expected_wait_s(priority))
        self.turned_away(refusal)
        return refusal

    def turned_away(self, refusal: NoRoom, offered_to: int = 1) -> None:
        """Count a request that was refused towards the load that the controller sees.

        One of the class ``batch`` is none: it takes what others leave, and calls for no more replicas.

        Args:
            offered_to: replicas, each of which counts its part of it when it refuses; one that the next takes is then hardly any.
        """
        if refusal.priority is not Priority.BATCH:
            self._turned_away += 1 / offered_to

    # -- the queue -----------------------------------------------------------------------------------------------------

    def engine_has(self, running: int, waiting: int) -> None:
        """Take from the engine's newest statistics how many sequences it computes at once.

        Where requests wait though it could run more, something else than their number keeps them out: the KV cache, or prompts that
        are still to be computed. A queue that is there twice in a row is one; a request that has just come is none.
        """
        queued = waiting > 0
        limited = queued and self._queued_before
        self._slots = max(1, running, self._running_before) if limited else self._sequences
        self._queued_before, self._running_before = queued, running

    def expected_wait_s(self, priority: Priority = Priority.NORMAL) -> float | None:
        """Return how long the engine will take to begin a request that comes now; None: nobody knows."""
        ahead = self.inside + 1 - self._slots
        if not self._in_order:  # it overtakes those of lower classes that wait
            ahead = min(ahead, 1 + sum(count for each, count in self._by_class.items() if each.rank <= priority.rank))
        return 0.0 if ahead <= 0 else self._pace.wait_s(self._clock(), sequences=ahead)

    @property
    def _has_queue(self) -> bool:
        return self.inside > self._slots

    def _advance(self) -> None:
        self._pace.until(self._clock(), self._has_queue)

    # -- refusals ------------------------------------------------------------------------------------------------------

    def _check_sequences(self, more: int, share: float, priority: Priority) -> None:
        most, excess = _over(self.limit, share, self.inside + more)
        if excess > 0:
            message = (
                f"overloaded: this replica computes {self.inside} sequences and takes {most} at present; try again"
            )
            raise self._refusal(Reason.SEQUENCES, priority, message, self._pace.wait_s(self._clock(), excess))

    def _check_tokens(self, more: int, share: float, priority: Priority) -> None:
        most, excess = _over(self.token_limit, share, self.tokens_inside + more)
        if excess > 0:
            message = (
                f"overloaded: the requests in this replica are expected to need {self.tokens_inside} tokens, this one {more} more, "
                f"and it takes {most} at present; try again"
            )
            raise self._refusal(Reason.TOKENS, priority, message, self._pace.wait_s(self._clock(), tokens=excess))

    def _check_deadline(self, deadline_s: float, priority: Priority) -> None:
        wait_s = self.expected_wait_s(priority)
        if wait_s is not None and wait_s > MARGIN * deadline_s:
            message = (
                f"overloaded: the engine would begin this request in about {wait_s:.1f} s, its queue deadline ends in "
                f"{deadline_s:.1f} s"
            )
            raise self._refusal(Reason.DEADLINE, priority, message, wait_s - MARGIN * deadline_s)

    def _refusal(self, reason: Reason, priority: Priority, message: str, wait_s: float | None) -> NoRoom:
        self.refusals[reason, priority] += 1
        return NoRoom(reason, priority, message, _retry_after_s(wait_s))


def _over(limit: int | None, share: float, wanted: int) -> tuple[int, int]:
    """Return how much a share of a limit is, and by how much what is wanted is more; nothing is more than no limit."""
    most = wanted if limit is None else max(1, math.floor(limit * share))
    return most, wanted - most


def _retry_after_s(wait_s: float | None) -> int:
    return RETRY_AFTER_S if wait_s is None else min(LONGEST_RETRY_S, max(1, math.ceil(wait_s)))
