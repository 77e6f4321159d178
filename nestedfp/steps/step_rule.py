"""The engine's own decision where no deadlines plan its steps: which precision one step runs in.

Pure and standard library only, so that the engine's scheduler and the simulator run the same code.
The order of precedence: a pinned request, then a fixed directive, then the threshold of the ``auto``
directive. Where one of these asks for FP8 but the engine's measured step costs say that it saves nothing at this size, the
step stays exact.
"""

from dataclasses import dataclass

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_costs import StepCosts

# Of a step rule's numbers: least and most.
RANGES: dict[str, tuple[float, float]] = {
    "fp8_budget_fraction": (0, 1),
    "ttft_deadline_s": (1e-6, 1e15),
    "tpot_deadline_s": (1e-6, 1e15),
    "tpot_grace_tokens": (0, 1e9),
    "exact_step_s": (1e-6, 1e9),
    "room_ttft_s": (1e-6, 1e15),
    "exact_ttft_deadline_s": (1e-6, 1e15),
    "exact_tpot_deadline_s": (1e-6, 1e15),
}


@dataclass(frozen=True, slots=True)
class StepRule:
    """Threshold and deadlines of the ``auto`` directive.

    With both deadlines steps are planned by them (nestedfp/steps/rows/row_rule.py), and the threshold counts for nothing. Without,
    a step runs FP8 as soon as the threshold is passed.

    Attributes:
        fp8_budget_fraction: FP8 when the step schedules more than this share of the engine's own token budget (the paper's rule
            takes half of it). None switches it off.
        ttft_deadline_s: deadline of first tokens, from a request's arrival. None: no step is planned.
        tpot_deadline_s: deadline of the mean time per output token.
        tpot_grace_tokens: a request may be above ``tpot_deadline_s`` as long as it would be within it again were its next
            so many tokens to come at once. 0: never above.
        exact_step_s: under the directive ``fp16`` a step computes no more prompt tokens than fit into so many seconds. None: as
            many as the token budget allows.
        room_ttft_s: that a first token may take, for the engine to say how many prompt tokens it can take
            (nestedfp/steps/prompt_room.py), with steps of ``exact_step_s``. None: it does not say.
        exact_ttft_deadline_s: the first deadline under the directive ``fp16``, which then computes an answer fast rather than
            late. None: that directive computes FP16 alone.
        exact_tpot_deadline_s: the second.
    """

    fp8_budget_fraction: float | None = None
    ttft_deadline_s: float | None = None
    tpot_deadline_s: float | None = None
    tpot_grace_tokens: int = 0
    exact_step_s: float | None = None
    room_ttft_s: float | None = None
    exact_ttft_deadline_s: float | None = None
    exact_tpot_deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a number out of its range, and TypeError for anything but a number."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # NaN neither
                raise ValueError(f"expected {name} from {least:g} to {most:g}, got {value!r}")
        for one, other in (("ttft_deadline_s", "tpot_deadline_s"), ("exact_ttft_deadline_s", "exact_tpot_deadline_s")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(
                    f"expected {one} and {other}, or neither, got {getattr(self, one)} and {getattr(self, other)}"
                )

    def deadlines_s(self, directive: DirectiveMode) -> tuple[float, float] | None:
        """Deadlines of the first token and of the mean time per output token by which steps are planned; None: by none."""
        if directive is DirectiveMode.FP8:
            return None
        exact = directive is DirectiveMode.FP16
        ttft_s = self.exact_ttft_deadline_s if exact else self.ttft_deadline_s
        tpot_s = self.exact_tpot_deadline_s if exact else self.tpot_deadline_s
        return None if ttft_s is None or tpot_s is None else (ttft_s, tpot_s)


def choose(
    scheduled_tokens: int,
    budget_tokens: int,
    directive: DirectiveMode,
    rule: StepRule,
    costs: StepCosts | None = None,
    *,
    has_pinned: bool = False,
) -> tuple[Mode, str]:
    """Choose the precision of one step; return it, and why: "pinned", "directive", "step_budget", "below_thresholds" or "no_gain".

    Args:
        scheduled_tokens: of the step.
        budget_tokens: the most that a step may schedule.
        directive: what the controller said.
        rule: threshold of ``auto``.
        costs: this engine's measured step costs; None: not measured, FP8 is taken to pay at every size.
        has_pinned: a scheduled request demands FP16.
    """
    if has_pinned:
        return Mode.FP16, "pinned"
    if directive is not DirectiveMode.AUTO:
        return Mode(directive.value), "directive"
    if rule.fp8_budget_fraction is None or scheduled_tokens <= rule.fp8_budget_fraction * budget_tokens:
        return Mode.FP16, "below_thresholds"
    if costs is not None and not costs.fp8_pays(scheduled_tokens):
        return Mode.FP16, "no_gain"
    return Mode.FP8, "step_budget"
