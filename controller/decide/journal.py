"""Turns what the control loop did into records, once each: changes as they come, what is held back when it changes. Pure."""

from collections import Counter

from controller.audit import DecisionOutcome, DecisionRecord, Rung
from controller.config import ControllerConfig
from controller.decide.guards import Plan
from controller.decide.overload import LadderState
from controller.protocol.publisher import Content, DirectivePublisher
from nestedfp.modes import DirectiveMode

NOTES_EVERY_S = 1.0  # a proposal that flickers must not write ten lines per second
Held = tuple[DirectiveMode | None, str]


class DecisionJournal:
    """Knows what has been recorded, and numbers the decisions; ``start`` is what the first directive asks for."""

    def __init__(self, start: Content, reason: str) -> None:
        self.last_reason = reason  # of the latest step
        self.last_wanted: DirectiveMode | None = None
        self.reload_count = 0
        self.counts: dict[DecisionOutcome, Counter[str]] = {}  # of decisions, by reason
        self._made = 0
        self._published: tuple[Content, int] = (start, 0)  # and its epoch
        self._held: Held | None = None
        self._noted_at_s: float | None = None
        self._reload_to_note = False

    def note_plan(self, plan: Plan) -> None:
        """Remember what the latest step decided."""
        self.last_reason, self.last_wanted = plan.decision.reason, plan.wanted

    def reloaded(self) -> None:
        """The next step runs under another configuration."""
        self.reload_count += 1
        self._reload_to_note = True

    def write(
        self,
        now_s: float,
        config: ControllerConfig,
        plan: Plan,
        decided: Content,
        publisher: DirectivePublisher,
        rung: Rung,
        ladder: LadderState,
        climbed: str | None,
    ) -> tuple[DecisionRecord | None, tuple[DecisionRecord, ...]]:
        """The record of this step, if something came into force or was stated, and notes."""

        def make(outcome: DecisionOutcome, reason: str, before: Content, after: Content) -> DecisionRecord:
            self._made += 1
            self.counts.setdefault(outcome, Counter())[reason] += 1
            return DecisionRecord(
                decision_id=self._made,
                now_s=now_s,
                outcome=outcome,
                from_mode=before.mode,
                to_mode=after.mode,
                wanted=plan.wanted,
                exceptions=dict(after.exceptions),
                rule=after.rule,
                epoch=publisher.epoch,
                policy=config.policy.name,
                reason=reason,
                inputs=dict(plan.decision.inputs),
                rung=rung,
                admission_scale=after.admission_scale,
                desired_replicas=ladder.desired_replicas,
            )

        notes = []
        if self._reload_to_note:
            self._reload_to_note = False
            notes.append(make(DecisionOutcome.RELOADED, "config_reloaded", self._published[0], publisher.content))
        record = None
        content, epoch = self._published
        if epoch != publisher.epoch:
            same = content == publisher.content and epoch > 0
            reason = "epoch_raised" if same else publisher.reason
            outcome = DecisionOutcome.RENUMBERED if same else DecisionOutcome.APPLIED
            record = make(outcome, reason, content, publisher.content)
            self._published = (publisher.content, publisher.epoch)
        elif climbed is not None:
            record = make(DecisionOutcome.STATED, climbed, decided, decided)
        held = None if plan.held is None else (plan.wanted, plan.held)
        if held != self._held:
            if record is not None and held is None:
                self._held = held  # the record says it
            elif self._noted_at_s is None or now_s - self._noted_at_s >= NOTES_EVERY_S:
                outcome = DecisionOutcome.RELEASED if held is None else DecisionOutcome.HELD
                notes.append(make(outcome, plan.decision.reason, decided, decided))
                self._held, self._noted_at_s = held, now_s
        return record, tuple(notes)
