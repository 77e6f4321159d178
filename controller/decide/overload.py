"""What the controller does when FP8 is not enough: degrade, then shed, then scale; undone in reverse order. Pure.

| rung    | on                                                          | undone                                            |
|---------|-------------------------------------------------------------|---------------------------------------------------|
| degrade | the policy wants FP8                                        | the policy wants FP16 and the rungs below are off |
| shed    | all replicas in FP8 and the SLO missed for ``shed_after_s`` | calm for ``recover_after_s``, step by step, soon  |
|         |                                                             | one after the other while nobody is refused       |
| scale   | requests still rejected ``scale_after_s`` later             | fewer would do for ``scale_down_after_s``         |

With ``exact_share`` it asks, whether anything is shed or not, for one more replica each time that a smaller share of them has been
exact for ``scale_after_s``. Fast answers bridge the minutes until it serves.

The SLO is missed when half of the replicas have a request that has waited longer than the TTFT objective, or most of the answers
that ended lately missed it while half of the replicas are slow: an engine that takes in all that come keeps few waiting, and is
slow for all. The first step down begins at what an engine runs, without its queue, not at a limit that it is far from, and goes
as far below as its answers are slower than the objective: at the same rate, as many fewer run at a time. While the queue shrinks
the next step waits for what the last one did: waits and answers lag behind. Fewer replicas are asked for only when fewer would
do. A step back is a trial; each trial that fails doubles the pauses before the next ones, so that a constant load sees ever
fewer of them.

While replicas that were asked for are still needed, admission goes back up though the scale rung stays: to reject users while
replicas are idle helps nobody.
"""

import math
from dataclasses import dataclass, replace

from controller.audit import Rung
from controller.config import ControllerConfig, LadderConfig
from controller.decide.guards import fresh, warmed_up
from controller.fleet import path_limit
from controller.fleet.view import Replicas, ReplicaView, ids_of
from controller.policies import POLICIES
from controller.protocol.publisher import Content
from nestedfp.modes import DirectiveMode
from workload.slo import Slo

LONGEST_BACKOFF = 64  # times the usual pause
MOST_MISSED, FEW_MISSED = 0.5, 0.1  # of the requests that ended lately
FEWEST_JUDGED = 20  # requests, or gaps between tokens, to speak of a share of them
MISSES_REMEMBERED_S = 10.0  # while too few end to say anew
SLOW = 0.9  # of the TPOT objective, that a step takes in an engine whose answers still miss it
TRIALS_FORGOTTEN_S = 3600.0


@dataclass(frozen=True, slots=True)
class LadderState:
    """Where on the ladder the cluster stands, and since when."""

    insufficient: bool = False  # FP8 alone does not hold the SLO
    admission_scale: float = 1.0
    desired_replicas: int | None = None
    failing_since_s: float | None = None  # all in FP8, and the SLO missed
    calm_since_s: float | None = None
    shed_since_s: float | None = None
    fewer_since_s: float | None = None  # since when fewer replicas than stated would do
    stepped_at_s: float | None = None  # of the last step of the admission scale
    tried_at_s: float | None = None  # of the last step back, which may turn out to have been too early
    failed_trials: int = 0
    missed_share: float = 0.0  # of the requests that ended, when there were last enough to say
    missed_at_s: float | None = None  # when that was
    exact_share: float | None = None  # of the replicas, smoothed: K comes and goes with the load of seconds
    exact_share_at_s: float = 0.0
    inexact_since_s: float | None = None  # since when that has been less than it should be

    def rung(self, degraded: bool) -> Rung:
        """The highest rung in use; ``degraded`` when any replica is directed to FP8."""
        if self.desired_replicas is not None:
            return Rung.SCALE
        if self.admission_scale < 1.0:
            return Rung.SHED
        return Rung.DEGRADE if degraded else Rung.NONE

    @property
    def holds_fp8(self) -> bool:
        """Whether FP16 must wait: precision is the last thing to be restored."""
        return self.admission_scale < 1.0 or (self.desired_replicas is not None and self.insufficient)


@dataclass(frozen=True, slots=True)
class Strain:
    """What the ladder looks at."""

    now_s: float
    replicas: int  # that serve, and have been heard of lately
    fully_degraded: bool  # all of them are directed to FP8, or the policy may not do that
    offered_over_admitted: float  # 1 when nothing was rejected
    over_slo: int  # replicas whose oldest request has waited longer than the objective
    over_half_slo: int
    draining: bool = False  # the queue shrinks, or is gone: what has been shed may be enough already
    missed_share: float | None = None  # of the requests that ended lately; None: too few to say
    slow: bool = False  # half of the replicas still are: answers are judged when they end, and began long before
    # Of the admission limit, what would run in time of what runs, on the replica where it is most; None: nobody says.
    fitting_share: float | None = None
    exact_replicas: int = 0  # that are directed to FP16

    @property
    def failing(self) -> bool:
        return 2 * self.over_slo >= self.replicas or (self.slow and (self.missed_share or 0.0) > MOST_MISSED)

    @property
    def calm(self) -> bool:
        return 2 * self.over_half_slo < self.replicas


def advance(strain: Strain, state: LadderState, config: LadderConfig) -> tuple[LadderState, str | None]:
    """Go a step up or down the ladder where it is time to. Returns the new state and, when it acted, why."""
    if strain.replicas == 0:  # nothing is known: stay, and let no time count
        return replace(state, failing_since_s=None, calm_since_s=None, fewer_since_s=None, inexact_since_s=None), None
    strain, state = _remember(strain, state)
    state = _smooth(strain, state, config)
    state = _note(strain, state, config)
    for act in (_say, _add_exact, _shed, _scale, _scale_back, _admit):
        if (acted := act(strain, state, config)) is not None:
            return acted
    return state, None


def shedding(state: LadderState, admission_scale: float, now_s: float, config: LadderConfig) -> LadderState:
    """Go on from the admission scale that an earlier controller left in force."""
    if not config.shed:
        return state
    left = replace(state, insufficient=True, admission_scale=admission_scale, shed_since_s=now_s, stepped_at_s=now_s)
    return limited(left, config)


def rejoined(state: LadderState, desired_replicas: int | None, config: LadderConfig) -> LadderState:
    """Go on from the replicas that an earlier controller asked for, as one of them was told; None: it was told of none.

    The largest number loses no replica too soon, as in ``deploy/scaling.py``.
    """
    if desired_replicas is None or not config.scale:
        return state
    wanted = max(desired_replicas, state.desired_replicas or 0)
    return limited(replace(state, insufficient=config.exact_share is None, desired_replicas=wanted), config)


def limited(state: LadderState, config: LadderConfig) -> LadderState:
    """The state under another configuration: what is switched off ends at once."""
    if not config.shed:
        state = replace(state, admission_scale=1.0, shed_since_s=None, stepped_at_s=None)
    else:
        state = replace(state, admission_scale=max(state.admission_scale, config.min_admission_scale))
    if not config.scale or config.max_replicas is None:
        return replace(state, desired_replicas=None, fewer_since_s=None)
    if state.desired_replicas is not None:
        state = replace(state, desired_replicas=min(state.desired_replicas, config.max_replicas))
    return state


def replicas_needed(strain: Strain, state: LadderState, config: LadderConfig) -> int:
    """How many replicas would serve what is offered in FP8, by what is rejected."""
    most = config.max_replicas or strain.replicas
    if _lacks_exact(state, config) and not strain.failing and strain.offered_over_admitted <= 1.0:
        wanted = strain.replicas + 1.0
    elif strain.failing or strain.offered_over_admitted > 1.0:
        wanted = max(strain.replicas + 1.0, strain.replicas * min(2.0, strain.offered_over_admitted))
    else:
        # Calm says only that as many as there are suffice, and of those rejected nothing. That one fewer would do has
        # to be tried, and only once everybody is let in.
        well = strain.over_half_slo == 0 and (strain.missed_share or 0.0) <= FEW_MISSED
        fewer = well and state.admission_scale == 1.0 and _spares_one(strain, state, config)
        wanted = strain.replicas - 1.0 if fewer else float(max(strain.replicas, state.desired_replicas or 0))
    return max(config.min_replicas, min(most, math.ceil(wanted - 1e-9)))


def _smooth(strain: Strain, state: LadderState, config: LadderConfig) -> LadderState:
    """Follow the share of exact replicas over some ``scale_after_s``."""
    share = strain.exact_replicas / strain.replicas
    if state.exact_share is not None:
        passed_s = max(0.0, strain.now_s - state.exact_share_at_s)
        share += (state.exact_share - share) * math.exp(-passed_s / max(config.scale_after_s, 1e-9))
    return replace(state, exact_share=share, exact_share_at_s=strain.now_s)


def _lacks_exact(state: LadderState, config: LadderConfig) -> bool:
    return config.exact_share is not None and state.exact_share is not None and state.exact_share < config.exact_share


def _spares_one(strain: Strain, state: LadderState, config: LadderConfig) -> bool:
    """Whether the share of exact replicas may hold with one fewer: its load can cost an exact one beside itself."""
    if config.exact_share is None or state.exact_share is None or strain.exact_replicas == strain.replicas:
        return True
    return state.exact_share * strain.replicas - 2 >= config.exact_share * (strain.replicas - 1)


Acted = tuple[LadderState, str] | None


def _remember(strain: Strain, state: LadderState) -> tuple[Strain, LadderState]:
    """Go by the last known share of misses while too few end to say."""
    if strain.missed_share is not None:
        return strain, replace(state, missed_share=strain.missed_share, missed_at_s=strain.now_s)
    if 0.0 <= _lasted_s(strain.now_s, state.missed_at_s) <= MISSES_REMEMBERED_S:
        return replace(strain, missed_share=state.missed_share), state
    return strain, state


def _note(strain: Strain, state: LadderState, config: LadderConfig) -> LadderState:
    """Keep the times since when."""
    now_s = strain.now_s

    def since(holds: bool, since_s: float | None) -> float | None:
        return (now_s if since_s is None else since_s) if holds else None

    fewer = state.desired_replicas is not None and replicas_needed(strain, state, config) < state.desired_replicas
    failing = strain.failing and strain.fully_degraded
    awaited = state.desired_replicas is not None and strain.replicas < state.desired_replicas
    return replace(
        state,
        failing_since_s=since(failing, state.failing_since_s),
        calm_since_s=since(strain.calm and not failing, state.calm_since_s),
        inexact_since_s=since(_lacks_exact(state, config) and not awaited, state.inexact_since_s),
        fewer_since_s=since(fewer, state.fewer_since_s),
    )


def _patience(state: LadderState) -> int:
    """By how much longer than usual calm must last before a step back."""
    return LONGEST_BACKOFF if state.failed_trials > 5 else 1 << state.failed_trials


def _judge_trial(now_s: float, state: LadderState, config: LadderConfig) -> LadderState:
    """The SLO is missed: if the last step back was lately, it was too early."""
    if state.tried_at_s is None:
        return state
    ago_s = now_s - state.tried_at_s
    if ago_s > TRIALS_FORGOTTEN_S:
        return replace(state, tried_at_s=None, failed_trials=0)
    soon_s = (config.recover_after_s + config.shed_after_s) * _patience(state)
    return replace(state, tried_at_s=None, failed_trials=state.failed_trials + (ago_s <= soon_s))


def _lasted_s(now_s: float, since_s: float | None) -> float:
    return -1.0 if since_s is None else now_s - since_s


def _say(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """State that FP8 alone does not hold the SLO, or that it does again."""
    now_s = strain.now_s
    if not state.insufficient and _lasted_s(now_s, state.failing_since_s) >= config.shed_after_s:
        state = replace(_judge_trial(now_s, state, config), insufficient=True)
        return _shed(strain, state, config) or (state, "fp8_cannot_hold_slo")
    # With exact_share replicas stay stated for the sake of exact ones, which cannot come back while FP8 is held for the others.
    held = state.admission_scale < 1.0 or (config.exact_share is None and state.holds_fp8)
    if state.insufficient and not held and _lasted_s(now_s, state.calm_since_s) >= config.recover_after_s:
        return replace(state, insufficient=False, shed_since_s=None), "fp8_holds_slo"
    return None


def _shed(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """Lower admission by a step."""
    now_s = strain.now_s
    if not (config.shed and state.insufficient and state.failing_since_s is not None):
        return None
    if state.admission_scale <= config.min_admission_scale:
        return None
    pause_s = config.shed_settle_s if strain.draining else config.shed_every_s
    if state.stepped_at_s is not None and now_s - state.stepped_at_s < pause_s:
        return None
    if state.admission_scale == 1.0 and now_s - state.failing_since_s < config.shed_after_s:
        return None
    scale = state.admission_scale * config.shed_factor
    if state.admission_scale == 1.0 and strain.fitting_share is not None:
        scale = min(scale, strain.fitting_share)
    return replace(
        _judge_trial(now_s, state, config),
        admission_scale=max(config.min_admission_scale, round(scale, 6)),
        shed_since_s=now_s if state.shed_since_s is None else state.shed_since_s,
        stepped_at_s=now_s,
        calm_since_s=None,
    ), "shed_more"


def _add_exact(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """State one replica more where too few have been exact for long since all that were stated are there."""
    stated = state.desired_replicas or strain.replicas
    if state.inexact_since_s is None or strain.now_s - state.inexact_since_s < config.scale_after_s:
        return None
    if (wanted := min(stated + 1, config.max_replicas or stated)) == stated:
        return None
    state = _judge_trial(strain.now_s, state, config)
    return replace(state, desired_replicas=wanted, inexact_since_s=strain.now_s, fewer_since_s=None), "too_few_exact"


def _scale(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """State more replicas when what came before has not been enough for long."""
    if not config.scale or not state.insufficient:
        return None
    if config.shed:
        short = state.failing_since_s is not None or strain.offered_over_admitted > 1.0
        lasted_s, after_s = _lasted_s(strain.now_s, state.shed_since_s), config.scale_after_s
    else:
        short = state.failing_since_s is not None
        lasted_s, after_s = _lasted_s(strain.now_s, state.failing_since_s), config.shed_after_s + config.scale_after_s
    wanted = replicas_needed(strain, state, config)
    if (
        not short
        or lasted_s < after_s
        or wanted <= (state.desired_replicas or max(config.min_replicas, strain.replicas))
    ):
        return None
    # While replicas that were asked for have yet to come, their absence is no reason to ask for more.
    if state.desired_replicas is not None and strain.replicas < state.desired_replicas:
        return None
    return replace(_judge_trial(strain.now_s, state, config), desired_replicas=wanted, fewer_since_s=None), "scale_up"


def _scale_back(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """State fewer replicas, or none, when fewer would do."""
    pause_s = config.scale_down_after_s * _patience(state)
    if state.desired_replicas is None or _lasted_s(strain.now_s, state.fewer_since_s) < pause_s:
        return None
    wanted = replicas_needed(strain, state, config)
    stated = wanted if wanted > config.min_replicas else None
    return replace(
        state, desired_replicas=stated, fewer_since_s=None, calm_since_s=strain.now_s, tried_at_s=strain.now_s
    ), "scale_back"


def _admit(strain: Strain, state: LadderState, config: LadderConfig) -> Acted:
    """Raise admission by a step; first the stated replicas must be as few as would do."""
    if state.admission_scale == 1.0 or state.fewer_since_s is not None:
        return None
    # Nobody refused since the last step up: the limit binds nobody, and raising it further risks little.
    well = (
        strain.offered_over_admitted <= 1.0
        and state.stepped_at_s is not None
        and state.tried_at_s == state.stepped_at_s
    )
    pause_s = config.shed_every_s if well else config.recover_after_s
    if _lasted_s(strain.now_s, state.calm_since_s) < pause_s * _patience(state):
        return None
    scale = min(1.0, round(state.admission_scale / config.shed_factor, 6))
    return replace(
        state,
        admission_scale=scale,
        stepped_at_s=strain.now_s,
        tried_at_s=strain.now_s,
        calm_since_s=strain.now_s,
        shed_since_s=state.shed_since_s if scale < 1.0 else None,
    ), "admit_more"


DRAIN_PER_S = 0.05  # of the queue: one that shrinks faster is gone in 20 s


def measure(
    now_s: float, views: Replicas, current: Content, config: ControllerConfig, offered_over_admitted: float
) -> Strain:
    """The strain on the replicas that serve and have been heard of lately, under the modes of ``current``."""
    seen = fresh(warmed_up(views))
    slo_s = config.slo.ttft_ms / 1e3
    waits_s = [view.snapshot.oldest_wait_s for view in seen]
    queued = sum([view.snapshot.waiting_tokens for view in seen])
    growth = sum([view.rates.queue_growth_tokens_per_s for view in seen if view.rates is not None])
    rates = [view.rates for view in seen if view.rates is not None and not path_limit.limits(view)]
    judged = sum([rate.slo_evaluated for rate in rates])
    met = sum([rate.within_slo for rate in rates])
    exact = sum([current.mode_for(replica_id) is DirectiveMode.FP16 for replica_id in ids_of(seen)])
    return Strain(
        now_s=now_s,
        replicas=len(seen),
        # As far as the policy may; one that gives way is fast then, and not FP8 alone.
        fully_degraded=exact == 0 or not POLICIES[config.policy.name].adaptive,
        offered_over_admitted=offered_over_admitted,
        over_slo=sum([wait_s > slo_s for wait_s in waits_s]),
        over_half_slo=sum([wait_s > slo_s / 2 for wait_s in waits_s]),
        draining=growth <= -DRAIN_PER_S * queued,  # 0 <= 0 where nothing waits
        exact_replicas=exact,
        missed_share=None if judged < FEWEST_JUDGED else max(0.0, 1.0 - met / judged),
        slow=2 * sum([_is_slow(view, config.slo) for view in seen]) >= len(seen) > 0,
        fitting_share=max(
            [share for view in seen if (share := _fitting_share(view, config.slo)) is not None], default=None
        ),
    )


def _is_slow(view: ReplicaView, slo: Slo) -> bool:
    snapshot = view.snapshot
    return path_limit.engine_step_ms(snapshot) >= SLOW * slo.tpot_ms or snapshot.oldest_wait_s * 1e3 > slo.ttft_ms / 2


def _fitting_share(view: ReplicaView, slo: Slo) -> float | None:
    """As much of its admission limit as the engine runs, over how many times slower than the objective it answers."""
    snapshot = view.snapshot
    if snapshot.inside_share is None or not snapshot.running:
        return None
    share = snapshot.inside_share * snapshot.running / (snapshot.running + snapshot.waiting)
    if snapshot.tpot.count < FEWEST_JUDGED:
        return share
    return share / max(1.0, path_limit.engine_tpot_ms(snapshot, snapshot.tpot.p50_ms) / slo.tpot_ms)
