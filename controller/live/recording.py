"""Writes every input of a control loop, and what it answered, as JSON lines: what ``controller.live.replay`` plays again.

A line is an object with ``kind`` and, but for the first, ``now_s`` of the loop's clock:

| kind     | besides                                            |
|----------|----------------------------------------------------|
| config   | schema_version, config: how the loop was made      |
| snapshot | snapshot, epoch: after it                          |
| ack      | ack                                                |
| step     | effects                                            |
| override | mode, ttl_s, replica_id, effects                   |
| reload   | config, effects                                    |

``effects`` is ``{"error": text}`` where the call raised.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from controller.audit import SCHEMA_VERSION, StatusReport
from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop, Effects
from controller.live.decision_log import RotatingLines
from controller.messages import Directive, DirectiveAck, ReplicaSnapshot
from nestedfp.modes import DirectiveMode

MAX_FILE_BYTES = 256 << 20  # some seven hours of one replica, at 10 snapshots per second
FILES_KEPT = 8


class RecordingLoop:
    """A ``ControlLoop`` that leaves a recording behind; the same methods, the same answers.

    Args:
        config: of the loop.
        path: file to write; older ones are kept as ``path.1`` and so on.
    """

    def __init__(self, config: ControllerConfig, path: str) -> None:
        self._loop = ControlLoop(config)
        self._lines = RotatingLines(path, MAX_FILE_BYTES, FILES_KEPT)
        self._write("config", schema_version=SCHEMA_VERSION, config=config.model_dump(mode="json"))

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        self._loop.on_snapshot(now_s, snapshot)
        self._write("snapshot", now_s=now_s, snapshot=snapshot.model_dump(mode="json"), epoch=self._loop.epoch)

    def on_ack(self, now_s: float, ack: DirectiveAck) -> None:
        self._loop.on_ack(now_s, ack)
        self._write("ack", now_s=now_s, ack=ack.model_dump(mode="json"))

    def step(self, now_s: float) -> Effects:
        return self._recorded("step", lambda: self._loop.step(now_s), now_s=now_s)

    def override(
        self, now_s: float, mode: DirectiveMode, ttl_s: float | None = None, replica_id: str | None = None
    ) -> Effects:
        return self._recorded(
            "override",
            lambda: self._loop.override(now_s, mode, ttl_s, replica_id),
            now_s=now_s,
            mode=mode,
            ttl_s=ttl_s,
            replica_id=replica_id,
        )

    def reload(self, now_s: float, config: ControllerConfig) -> Effects:
        dumped = config.model_dump(mode="json")
        return self._recorded("reload", lambda: self._loop.reload(now_s, config), now_s=now_s, config=dumped)

    def directive_for(self, replica_id: str) -> Directive | None:
        return self._loop.directive_for(replica_id)

    @property
    def epoch(self) -> int:
        return self._loop.epoch

    def converged(self) -> tuple[int, DirectiveMode, int, float] | None:
        return self._loop.converged()

    def status(self, now_s: float) -> StatusReport:
        # Reading the clock is part of the loop's state only when the clock steps back; a status is no input otherwise.
        return self._loop.status(now_s)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _recorded(self, kind: str, call: Callable[[], Effects], **line: Any) -> Effects:
        try:
            effects = call()
        except Exception as error:
            self._write(kind, **line, effects={"error": repr(error)})
            raise
        self._write(kind, **line, effects=effects_as_json(effects))
        return effects

    def _write(self, kind: str, **line: Any) -> None:
        self._lines.write(json.dumps({"kind": kind, **line}, separators=(",", ":")))


def effects_as_json(effects: Effects) -> dict[str, Any]:
    """Effects as JSON knows them; floats survive exactly."""
    return {
        **asdict(effects),
        "record": None if effects.record is None else effects.record.model_dump(mode="json"),
        "notes": [note.model_dump(mode="json") for note in effects.notes],
    }
