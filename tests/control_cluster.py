"""A cluster for the control loop's tests: real loop, real followers, a perfect network, and a load that the test sets."""

from typing import Any

from controller_builders import make_snapshot

from controller.audit import DecisionRecord, StatusReport
from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop, Effects
from controller.messages import ReplicaSnapshot
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode, Mode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
HOT = {"oldest_wait_s": 1.0, "waiting": 20, "waiting_tokens": 9000}


def make_config(policy: str = "threshold", **options: Any) -> ControllerConfig:
    return ControllerConfig.model_validate({"policy": {"name": policy}, **options})


def make_loop(policy: str = "threshold", **options: Any) -> ControlLoop:
    return ControlLoop(make_config(policy, **options))


class Cluster:
    """Drives a loop and its replicas in steps of 100 ms over a perfect network. The load is whatever the test says."""

    def __init__(self, loop: ControlLoop, replicas: tuple[str, ...] = ("r0",), now_s: float = 0.0) -> None:
        self.loop = loop
        self.now_s = now_s
        self.followers = {name: DirectiveFollower(name, *ControllerConfig().lapsed) for name in replicas}
        self.silent: set[str] = set()
        self.seq = 0
        self.tokens = dict.fromkeys(Mode, 0)
        self.records: list[DecisionRecord] = []
        self.notes: list[DecisionRecord] = []
        self.last = Effects(None, now_s)

    def run(
        self, duration_s: float, tokens_per_s: int = 1000, each: dict[str, dict[str, Any]] | None = None, **load: Any
    ) -> "Cluster":
        """``load`` is every replica's, ``each`` what differs by replica."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s - 1e-9:
            self.seq += 1
            for name in self.speaking:
                own = {**load, **(each or {}).get(name, {})}
                self.loop.on_snapshot(self.now_s, self.snapshot(name, tokens_per_s, **own))
                self.tell(name)
            self.carry_out(self.loop.step(self.now_s))
            self.now_s = round(self.now_s + 0.1, 6)
        return self

    def snapshot(self, name: str, tokens_per_s: int, **load: Any) -> ReplicaSnapshot:
        now = self.followers[name].in_force(self.now_s)
        mode = Mode.FP8 if now.mode is FP8 else Mode.FP16
        if name == min(self.followers):
            self.tokens[mode] += tokens_per_s // 10
        return make_snapshot(
            **{
                "replica_id": name,
                "seq": self.seq,
                "mode": mode,
                "directive": now.mode,
                "epoch": now.epoch,
                "rule": now.rule,
                "order": self.followers[name].order(self.now_s),
                "desired_replicas": self.followers[name].desired_replicas,
                "admission_scale": now.admission_scale,
                "lease_remaining_s": self.followers[name].lease_remaining_s(self.now_s),
                "tokens_fp16": self.tokens[Mode.FP16],
                "tokens_fp8": self.tokens[Mode.FP8],
                "steps_fp16": self.tokens[Mode.FP16] // 20,
                "steps_fp8": self.tokens[Mode.FP8] // 20,
                "arrivals": self.seq,
                "arrived_tokens": sum(self.tokens.values()),  # all of them prompts
                "step_ms_fp8": 10.0,
                **load,
            }
        )

    def tell(self, name: str) -> None:
        if (directive := self.loop.directive_for(name)) is not None:
            self.followers[name].on_directive(self.now_s, directive)

    def carry_out(self, effects: Effects) -> None:
        self.last = effects
        self.notes.extend(effects.notes)
        if effects.record is not None:
            self.records.append(effects.record)
        for name in self.speaking:
            self.tell(name)

    @property
    def speaking(self) -> list[str]:
        """Who is heard, in the order in which they were named: the order of arrival."""
        return [name for name in self.followers if name not in self.silent]

    @property
    def modes(self) -> set[DirectiveMode]:
        return {follower.in_force(self.now_s).mode for follower in self.followers.values()}

    @property
    def mode_of(self) -> dict[str, DirectiveMode]:
        return {name: follower.in_force(self.now_s).mode for name, follower in self.followers.items()}

    @property
    def status(self) -> StatusReport:
        return self.loop.status(self.now_s)
