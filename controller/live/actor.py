"""The live driver of the control loop: reads the clock, takes snapshots, has directives sent, writes the log.

A plain class: whoever deploys it makes it a Ray actor. All methods are coroutines on one event loop, so that nothing here
needs a lock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from controller.audit import StatusReport
from controller.config import STEP_PERIOD_S, ControllerConfig, check_deployed, explain
from controller.decide.loop import ControlLoop, Effects
from controller.live.config_file import ConfigFile
from controller.live.decision_log import DecisionLog
from controller.live.delivery import Delivery
from controller.messages import DirectiveAck, ReplicaSnapshot
from nestedfp.modes import DirectiveMode

log = logging.getLogger(__name__)
ModelT = TypeVar("ModelT", bound=BaseModel)

OVERRIDE_WAIT_S = 1.0  # how long the answer to an override waits for the replicas' acknowledgements
SAME_ERROR_EVERY_S = 10.0  # a failing step would otherwise write a traceback for every snapshot
REST = 9  # times as long as a step computed the loop rests, whatever comes, until STEP_PERIOD_S is over at the latest


class ControllerActor:
    """The cluster's precision controller.

    Args:
        config: the controller's section of the service configuration, as it was deployed.
        log_path: file for the decision log; None keeps decisions in memory only.
        config_path: YAML file whose section ``controller`` a reload reads, and a start: the controller before this one may have
            reloaded it. A file that cannot be used leaves ``config``, the status says why, and it is read once it has changed. None
            refuses reloads.

    Raises:
        ValueError: when the configuration is wrong; the message names each key.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ControllerConfig,
        log_path: str | None = None,
        config_path: str | None = None,
    ) -> None:
        try:
            given = ControllerConfig.model_validate(config)
        except ValidationError as error:
            raise ValueError(explain(error)) from None
        self._file = ConfigFile(config_path)
        self._deployed = given
        self._config, self._config_error = self._file.at_start(given)
        self._unread = self._config_error is not None  # the file, for which the deployed configuration stands in
        if self._unread:
            log.error("the configuration is that of the deployment, not the file's: %s", self._config_error)
        self._loop = ControlLoop(self._config)
        self._log = DecisionLog(log_path)
        self._said: tuple[str, float] = ("", 0.0)  # the last error of a step, and when
        self._delivery = Delivery(self._loop)
        self._step_errors = 0
        self._stepper: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # a snapshot since the last step

    def inherit(self, mode: str, remaining_s: float | None) -> None:
        """Begin under the override, fp16 or fp8, of the controller that this one takes the place of; None: it has no end."""
        if remaining_s != 0:
            self._write(self._loop.override(time.monotonic(), DirectiveMode(mode), remaining_s))

    # -- called by replicas and operators ------------------------------------------------------------------------------

    async def report(self, snapshot: Mapping[str, Any]) -> None:
        """Take a replica's snapshot.

        Raises:
            ValueError: when the snapshot is malformed; nothing changes then.
        """
        self._ensure_stepping()
        taken = _parsed(ReplicaSnapshot, "snapshot", snapshot)
        new = self._loop.directive_for(taken.replica_id) is None
        self._loop.on_snapshot(time.monotonic(), taken)
        self._delivery.tell(taken.replica_id if new else None)
        self._news.set()

    async def next_directive(
        self, replica_id: str, ack: Mapping[str, Any] | None = None, seen: str | None = None
    ) -> dict[str, Any] | None:
        """Take a replica's acknowledgement of the directive that it was told last, and answer as ``Delivery.next``.

        Raises:
            ValueError: when the acknowledgement is malformed; nothing changes then.
        """
        self._ensure_stepping()
        if ack is not None:
            self._loop.on_ack(time.monotonic(), _parsed(DirectiveAck, "acknowledgement", ack))
            self._delivery.tell()
        return await self._delivery.next(replica_id, seen)

    async def set_override(self, mode: str, ttl_s: float | None = None) -> dict[str, Any]:
        """Put ``mode`` (fp16 or fp8) in force at once, for ``ttl_s`` seconds or until ``auto`` hands back.

        Returns the status as soon as every replica has acknowledged, or after a second.

        Raises:
            ValueError: for any other mode, or a ``ttl_s`` that is not positive; nothing changes then.
        """
        self._ensure_stepping()
        if mode not in set(DirectiveMode):
            raise ValueError(f"expected mode fp16, fp8 or auto (hand back to the policy), got {mode!r}")
        self._carry_out(self._loop.override(time.monotonic(), DirectiveMode(mode), ttl_s))
        await self._delivery.acknowledged(OVERRIDE_WAIT_S)
        return await self.status()

    async def reload(self) -> dict[str, Any]:
        """Take the configuration's file up again; returns the status.

        Raises:
            ValueError: when the file cannot be used, with one line for each fault; the old configuration stays whole.
        """
        self._ensure_stepping()
        try:
            config = await asyncio.to_thread(self._file.read)
            check_deployed(self._deployed, config)
            self._carry_out(self._loop.reload(time.monotonic(), config))
        except ValueError as error:
            self._config_error = str(error)
            log.error("the configuration was not reloaded: %s", error)
            raise
        self._config, self._config_error, self._unread = config, None, False
        log.info("configuration reloaded from %s", self._file.path)
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """The cluster's state, ready for JSON."""
        self._ensure_stepping()
        report: StatusReport = self._loop.status(time.monotonic())
        extra = {
            **self._delivery.status(),
            "config_error": self._config_error,
            "step_errors": self._step_errors,
        }
        return report.model_copy(update=extra).model_dump(mode="json")

    async def decisions(self, since_id: int = 0) -> list[dict[str, Any]]:
        """The decisions after ``since_id`` that are still in memory, oldest first, ready for JSON."""
        return self._log.since(since_id)

    async def close(self) -> None:
        """Stop the loop and close the log."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
        self._delivery.close()
        self._log.close()

    async def _reload_if_changed(self) -> None:
        if not (self._config.reload_on_change or self._unread) or not self._file.changed(time.monotonic()):
            return
        with contextlib.suppress(ValueError):  # logged, and shown in the status
            await self.reload()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _ensure_stepping(self) -> None:
        # Not in __init__: whether a constructor runs inside the event loop is up to whoever creates the actor.
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.get_running_loop().create_task(self._step_for_ever())

    async def _step_for_ever(self) -> None:
        while True:
            self._news.clear()
            now_s, cpu_s = time.monotonic(), time.thread_time()
            next_step_at_s = now_s + STEP_PERIOD_S
            try:
                effects = self._loop.step(now_s)
                next_step_at_s = effects.next_step_at_s
                self._carry_out(effects)
                await self._reload_if_changed()
            except Exception as error:
                self._step_errors += 1
                if repr(error) != self._said[0] or now_s - self._said[1] >= SAME_ERROR_EVERY_S:
                    self._said = repr(error), now_s
                    log.exception(
                        "a step of the control loop failed; the directive stays and the next step tries again"
                    )
            took_s = time.thread_time() - cpu_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_step_at_s - time.monotonic())):
                    await asyncio.sleep(REST * took_s)
                    await self._news.wait()

    def _carry_out(self, effects: Effects) -> None:
        """Tell the replicas, and log. Never waits: the loop must not hang on a replica."""
        self._delivery.tell()
        # After the replicas have been told: a slow disk must not delay them.
        asyncio.get_running_loop().call_soon(self._write, effects)

    def _write(self, effects: Effects) -> None:
        decisions = [decision for decision in (effects.record, *effects.notes) if decision is not None]
        for decision in sorted(decisions, key=lambda decision: decision.decision_id):
            record = decision.model_copy(update={"wall_s": time.time()})
            log.info(
                "%s: %s -> %s, epoch %d: %s",
                record.outcome,
                record.from_mode,
                record.to_mode,
                record.epoch,
                record.reason,
            )
            self._log.write(record)


def _parsed(model: type[ModelT], what: str, given: Mapping[str, Any]) -> ModelT:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"malformed {what}:\n{explain(error)}") from None
