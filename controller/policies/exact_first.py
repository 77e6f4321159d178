"""As many replicas as the load allows run exact, the others fast; HAProxy sends every request to an exact one that has room.

An exact replica takes no more prompts than it can begin in time in FP16 (nestedfp/steps/prompt_room.py), and
computes an answer fast only where it would be late otherwise (nestedfp/steps/rows/row_rule.py). What comes beyond that goes to
fast replicas, which keep deadlines stricter than the objectives, and must have room at any time:

* K, the number of exact replicas, falls as soon as the load is more than a share of what all replicas compute in their present
  classes, over ten seconds, or clearly more over one, or fast replicas have had no room for a second;
* it rises when the load over ten seconds is clearly below that share with one more, and some time after the last change.

The load is the prompt tokens that arrive, times the tokens computed for each. With one replica the engine alone decides. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import exp
from typing import Annotated, Literal

from pydantic import Field

from controller.fleet.view import Replicas, ReplicaView
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.deadlines import Deadlines
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo

LOAD_S = 10.0  # over which the load is smoothed
BURST_S = 1.0  # the same for a load that comes at once
BURST_OVER = 1.4  # times the limit: such a load is above it, and not by chance
RATIO_S = 120.0  # memory of the tokens computed for each prompt token
LEAST_PROMPT_TOKENS = 100.0  # per replica, before that ratio is taken
FIRST_RATIO = 1.25
STARVED_SHARE = 0.1  # of its whole room: a fast replica with less has none
STARVED_SHARE_ALONE = 0.3  # the same of exact replicas where there is no fast one
STARVED_S = 1.0
STARVED_LOAD = 0.5  # of the limit: with less it is a long prompt, or one replica's trouble, and no load
LEARN_S = 5.0  # that replicas may take to say what they compute
FORGET_S = 10.0  # a replica without evidence for so long counts no more
GROW_MARGIN = 0.85  # of the limit, that the load must be below with one more exact replica
MINUTE_S = 60.0
# Of a fast replica beside exact ones: it gets what none of them could take, all at once. With the usual deadlines it would be late
# more often, and with FP8 alone no more seldom.
STRICT = Deadlines(ttft_fraction=0.5, tpot_fraction=0.85)


class ExactFirst(FrozenModel):
    """Parameters of the policy ``exact_first``."""

    name: Literal["exact_first"] = "exact_first"
    # Load over the tokens per second that steps within the TPOT objective compute: with more there is one exact replica fewer.
    utilisation: Annotated[float, Field(gt=0, le=1)] = 0.9
    grow_after_s: Annotated[float, Field(ge=0, le=3600)] = 10.0  # since the last change of K
    max_changes_per_minute: Annotated[int, Field(ge=1, le=60)] = 6  # K never waits to fall


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    at_s: float | None = None
    prompt_tokens_per_s: float | None = None  # of all replicas, over LOAD_S
    burst_tokens_per_s: float = 0.0  # the same over BURST_S
    computed: float = 0.0  # tokens and prompt tokens, decaying sums
    arrived: float = 0.0
    starved_since_s: float | None = None
    learning_since_s: float | None = None
    seen: tuple[tuple[str, float], ...] = ()  # replicas, and when there was evidence of them last
    changed_s: tuple[float, ...] = ()  # when K changed, in the last minute

    @property
    def ratio(self) -> float:
        """Tokens computed for each prompt token."""
        return max(1.0, self.computed / self.arrived) if self.arrived > LEAST_PROMPT_TOKENS else FIRST_RATIO


def rule_of(deadlines: Deadlines, slo: Slo) -> StepRule:
    """Return the step rule of all replicas: fast ones keep these deadlines, exact ones the usual ones."""
    usual = Deadlines().rule_for(slo)
    return replace(
        deadlines.rule_for(slo),
        exact_ttft_deadline_s=usual.ttft_deadline_s,
        exact_tpot_deadline_s=usual.tpot_deadline_s,
    )


def decide(observation: Observation, state: State, config: ExactFirst) -> tuple[Decision, State]:
    """Say which replicas are exact."""
    now_s, views = observation.now_s, observation.replicas
    state = _learn(now_s, views, state)
    # Of all that were there lately: one that computes its first requests is not in view, and stays what it is.
    before = frozenset(name for name, _ in state.seen if observation.mode_of(name) is DirectiveMode.FP16)
    known = [view for view in views if view.snapshot.exact_tokens_per_s and view.snapshot.fast_tokens_per_s]
    learns = state.prompt_tokens_per_s is None or not known
    since_s = (now_s if state.learning_since_s is None else state.learning_since_s) if learns else None
    state = replace(state, learning_since_s=since_s)
    inputs: tuple[tuple[str, float], ...] = ()
    if len(state.seen) < 2:
        wanted, reason = frozenset[str](), "one_replica"
    elif since_s is not None:
        late = now_s - since_s > LEARN_S
        wanted, reason = (frozenset[str](), "step_costs_unknown") if late else (before, "learning")
    else:
        load = (state.prompt_tokens_per_s or 0.0) * state.ratio
        high = max(load, state.burst_tokens_per_s * state.ratio / BURST_OVER)
        state = _starving(now_s, high, known, before, state, config)
        wanted, reason = _wanted(now_s, high, known, before, state, config)
        inputs = (
            ("load_tokens_per_s", load),
            ("limit_tokens_per_s", limit(known, wanted, config)),
            ("exact_replicas", float(len(wanted))),
        )
    if wanted != before and len(state.seen) > 1:
        state = replace(state, changed_s=(*state.changed_s, now_s), starved_since_s=None)
    return _decision(observation, wanted, reason, inputs), state


def limit(views: Replicas, exact: Collection[str], config: ExactFirst) -> float:
    """Return the load, tokens per second, that these replicas may have with those of them exact."""
    tokens_per_s = sum(
        (view.snapshot.exact_tokens_per_s if view.replica_id in exact else view.snapshot.fast_tokens_per_s) or 0.0
        for view in views
    )
    return config.utilisation * tokens_per_s


def _wanted(
    now_s: float, high: float, views: Replicas, before: frozenset[str], state: State, config: ExactFirst
) -> tuple[frozenset[str], str]:
    """Return the exact replicas: fewer by ``high``, the load with what came at once."""
    # Those with the fewest requests change: their answers are neither exact nor fast as a whole.
    exact = [view.replica_id for view in sorted(views, key=_inside) if view.replica_id in before]
    fast = [view.replica_id for view in sorted(views, key=_inside) if view.replica_id not in before]
    since_s = state.starved_since_s
    if exact and since_s is not None and now_s - since_s >= STARVED_S:
        return before - set(exact[: (len(exact) + 1) // 2]), "no_room"
    wanted = set(before)
    for replica_id in exact:
        if high <= limit(views, wanted, config):
            break
        wanted.discard(replica_id)
    if wanted != before:
        return frozenset(wanted), "load_over_limit"
    last_s = max(state.changed_s, default=None)
    rested = last_s is None or now_s - last_s >= config.grow_after_s
    if since_s is None and rested and len(state.changed_s) < config.max_changes_per_minute:
        could = []
        for replica_id in fast:
            if high > GROW_MARGIN * limit(views, {*wanted, replica_id}, config):
                break
            wanted.add(replica_id)
            could.append(replica_id)
        if could:  # half of the way, so that the next look sees what the first half did
            return before | set(could[: (len(could) + 1) // 2]), "load_below_limit"
    return before, "keep"


def _inside(view: ReplicaView) -> tuple[int, str]:
    return view.snapshot.running + view.snapshot.waiting, view.replica_id


def _learn(now_s: float, views: Replicas, state: State) -> State:
    seen = {**dict(state.seen), **dict.fromkeys((view.replica_id for view in views), now_s)}
    state = replace(
        state,
        seen=tuple((replica_id, at_s) for replica_id, at_s in seen.items() if now_s - at_s < FORGET_S),
        changed_s=tuple(at_s for at_s in state.changed_s if now_s - at_s < MINUTE_S),
    )
    rates = [view.rates for view in views if view.rates is not None]
    if not rates:
        return replace(state, at_s=now_s)
    passed_s = 0.0 if state.at_s is None else max(0.0, now_s - state.at_s)
    arriving = sum(rate.arrived_tokens_per_s for rate in rates)
    computing = sum(rate.tokens_per_s for rate in rates)
    smoothed, burst = state.prompt_tokens_per_s, state.burst_tokens_per_s
    smoothed = arriving if smoothed is None else smoothed + (1 - exp(-passed_s / LOAD_S)) * (arriving - smoothed)
    keep = exp(-passed_s / RATIO_S)
    return replace(
        state,
        at_s=now_s,
        prompt_tokens_per_s=smoothed,
        burst_tokens_per_s=burst + (1 - exp(-passed_s / BURST_S)) * (arriving - burst),
        computed=keep * state.computed + passed_s * computing,
        arrived=keep * state.arrived + passed_s * arriving,
    )


def _starving(
    now_s: float, load: float, views: Replicas, exact: Collection[str], state: State, config: ExactFirst
) -> State:
    """Note since when the replicas that must have room have had none, all together."""
    fast = [view for view in views if view.replica_id not in exact]
    rooms = [view.snapshot.room for view in fast or views if view.snapshot.room is not None]
    share = STARVED_SHARE if fast else STARVED_SHARE_ALONE
    starved = bool(rooms) and sum(room.tokens for room in rooms) < share * sum(room.full_tokens for room in rooms)
    starved = starved and load > STARVED_LOAD * limit(views, exact, config)
    since_s = (state.starved_since_s if state.starved_since_s is not None else now_s) if starved else None
    return replace(state, starved_since_s=since_s)


def _decision(
    observation: Observation,
    exact: Collection[str],
    reason: str,
    inputs: tuple[tuple[str, float], ...] = (),
) -> Decision:
    rule = rule_of(STRICT if exact else Deadlines(), observation.slo)
    exceptions = {replica_id: DirectiveMode.FP16 for replica_id in sorted(exact)}
    return Decision(DirectiveMode.AUTO, reason, rule, inputs, exceptions)


SPEC = PolicySpec(ExactFirst, decide, State, adaptive=True)
