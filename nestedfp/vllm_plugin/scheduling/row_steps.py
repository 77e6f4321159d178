"""Plans steps by row in terms of vLLM's requests: what nestedfp/steps/rows/row_rule.py asks for, and its plan by request id."""

from collections.abc import Callable, Container, Sequence
from math import inf
from typing import Any, NamedTuple

from nestedfp.steps.rows.row_rule import RowRule
from nestedfp.steps.rows.row_state import Decode, Prompt, RowState, first_due_s
from nestedfp.steps.step_times import StepTimes
from nestedfp.vllm_plugin.scheduling.deadline_watch import next_due_s


class RowStep(NamedTuple):
    """A planned step.

    Attributes:
        most_tokens: that a request may have, by id: 0 sits the step out; those that are not named decode as ever.
        fast: requests that were exact or might have been, and whose rows are fast from this step on, unless it is whole.
        resting: exact requests that decode, and sit it out.
        is_whole: every row runs FP16.
        reason: of row_rule.py.
    """

    most_tokens: dict[str, int]
    fast: frozenset[str]
    resting: tuple[str, ...]
    is_whole: bool
    reason: str


def left_tokens(request: Any) -> int:
    """Return how many tokens vLLM would compute of a request in a step without limits; 1 for one that decodes."""
    return int(request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens)


class RowSteps:
    """The rule of one engine.

    Args:
        budget_tokens: the most tokens of a step.
    """

    def __init__(self, budget_tokens: int) -> None:
        self._budget_tokens = budget_tokens
        self._rule = RowRule()

    def plan(
        self,
        deadlines_s: tuple[float, float],
        grace: int,
        times: StepTimes,
        now_s: float,
        decodes: Sequence[Any],
        line: Sequence[Any],
        *,
        begun: int,
        places: int,
        pinned: Container[str],
        may_starve: Container[str],
        cuts: Callable[[Any], bool],
        fullness: float,
    ) -> RowStep:
        """Plan the next step.

        Args:
            deadlines_s: of the first token and of the mean time per output token (``StepRule.deadlines_s``).
            grace: tokens that an answer is trusted to have still to come (``StepRule.tpot_grace_tokens``).
            times: what steps take.
            now_s: when it begins.
            decodes: requests that get a token in a step.
            line: those with parts of their prompts to be computed, in order.
            begun: how many of them, from the first on, have a place already.
            places: for the others.
            pinned: ids of requests that must be exact.
            may_starve: ids of requests without deadlines.
            cuts: whether a step may compute any part of a request's prompt.
            fullness: ``RowState.fullness``.
        """
        ttft_s, tpot_s = deadlines_s

        def decode(request: Any) -> Decode:
            due_s = inf if request.request_id in may_starve else next_due_s(request, tpot_s, grace, now_s)
            return Decode(due_s, request.request_id in pinned)

        def prompt(place: int, request: Any) -> Prompt:
            rid = request.request_id
            is_due = rid not in may_starve and request.nestedfp_first_token_s is None
            due_s = first_due_s(request.nestedfp_waits_since_s, ttft_s, now_s) if is_due else inf
            is_exact = request.nestedfp_class == "exact" and due_s > -inf
            return Prompt(left_tokens(request), due_s, is_exact, rid in pinned, place < begun, cuts(request))

        exact = [request for request in decodes if request.nestedfp_class == "exact"]
        fast = [request for request in decodes if request.nestedfp_class != "exact"]
        prompts = [prompt(place, request) for place, request in enumerate(line)]
        plan = self._rule.plan(
            RowState(
                now_s,
                list(map(decode, exact)),
                list(map(decode, fast)),
                prompts,
                places,
                self._budget_tokens,
                tpot_s,
                fullness,
                max(map(left_tokens, decodes), default=1),
            ),
            times,
        )
        most_tokens = dict.fromkeys((request.request_id for request in line), 0)
        runs = {*plan.exact, *plan.demoted}
        resting = tuple(request.request_id for i, request in enumerate(exact) if i not in runs)
        most_tokens |= dict.fromkeys(resting, 0)
        most_tokens |= {line[chunk.prompt].request_id: chunk.tokens for chunk in plan.chunks}
        turned = [exact[i].request_id for i in plan.demoted]
        turned += [line[chunk.prompt].request_id for chunk in plan.chunks if not chunk.is_exact]
        return RowStep(most_tokens, frozenset(turned), resting, plan.is_whole, plan.reason)
