"""A step that was planned by row (nestedfp/steps/rows/row_rule.py), in terms of vLLM's requests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from nestedfp.steps.rows.row_state import RowPlan


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


def by_request(plan: RowPlan, exact: Sequence[Any], line: Sequence[Any]) -> RowStep:
    """Return a plan by request id; its indices are those of these requests that decode exactly and wait in line."""
    most_tokens = dict.fromkeys((request.request_id for request in line), 0)
    runs = {*plan.exact, *plan.demoted}
    resting = tuple(request.request_id for i, request in enumerate(exact) if i not in runs)
    most_tokens |= dict.fromkeys(resting, 0)
    most_tokens |= {line[chunk.prompt].request_id: chunk.tokens for chunk in plan.chunks}
    turned = [exact[i].request_id for i in plan.demoted]
    turned += [line[chunk.prompt].request_id for chunk in plan.chunks if not chunk.is_exact]
    return RowStep(most_tokens, frozenset(turned), resting, plan.is_whole, plan.reason)
