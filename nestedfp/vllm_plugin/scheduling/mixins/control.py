"""Directives and measurements that the scheduler takes, and the counters and room that it reports."""

from dataclasses import asdict
from math import inf
from typing import Any

from vllm.v1.request import RequestStatus

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_costs import slowest
from nestedfp.steps.step_rule import StepRule
from nestedfp.vllm_plugin.scheduling.deadline_watch import next_due_s, steady_s
from nestedfp.vllm_plugin.scheduling.mixins.request_classes import RequestClasses


class EngineControl(RequestClasses):
    """The methods ``nestedfp_*`` are called through utilities of vLLM's engine core."""

    def nestedfp_set_directive(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Put a directive in force from the next step on.

        Args:
            directive: ``{"mode": "fp16" | "fp8" | "auto", "epoch": int, "rule": {...}}``.

        Returns:
            The mode and epoch in force.

        Raises:
            ValueError: for an unknown mode or rule.
        """
        rule, epoch = StepRule(**(directive.get("rule") or {})), int(directive["epoch"])
        mode, _, _ = self._in_force = DirectiveMode(directive["mode"]), rule, epoch
        return {"mode": mode.value, "epoch": epoch}

    def nestedfp_take_step_costs(self, ranks: list[dict[str, Any] | None]) -> None:
        """Take what every rank measured at its start; see nestedfp/vllm_plugin/ranks/timing/step_timing.py."""
        self._step_costs = slowest(ranks)
        self._watch.use(self._step_costs)

    def nestedfp_take_fp8_shares(self, ranks: list[float]) -> None:
        """Take what share of its weights has an FP8 mode on every rank; where it is none, no step is called FP8."""
        self._fp8_share = min(ranks)
        self._fp16_only = not any(ranks)

    def nestedfp_step_costs(self) -> list[list[float]] | None:
        """Return ``[tokens, fp16_ms, fp8_ms]`` by step size, which ``auto`` goes by; None: not measured."""
        return None if self._step_costs is None else self._step_costs.as_lists()

    def nestedfp_warmed_up(self) -> None:
        """Forget how long the warm-up's steps took, so that nobody takes a cold start for an overload."""
        self._totals.forget_durations()
        self._watch.use(self._step_costs)

    def nestedfp_stats(self) -> dict[str, Any]:
        """Return the engine's counters and queue state; totals count from the start of the engine.

        ``waiting``, ``waiting_tokens`` and ``oldest_wait_s`` are of requests that wait for their turn; those that wait for
        a grammar to compile, a remote KV cache or their own client are in ``blocked``. The latter two leave out requests that
        others may overtake for ever. A preempted request has waited since its preemption. ``progress_age_s`` says for how long
        there has been work and no step has ended; None: no work, or a pause.
        """
        totals, (directive, _, epoch) = self._totals, self._in_force
        waiting = list(self._turn_waiting())
        waiting_tokens = sum(
            max(0, r.num_tokens - r.num_computed_tokens) for r in waiting if r.request_id not in self._may_starve
        ) + sum(max(0, r.num_prompt_tokens - r.num_computed_tokens) for r in self.running)
        return {
            "mode": (totals.last_mode or Mode.FP16).value,
            "directive": directive.value,
            "epoch": epoch,
            "switches": totals.switches,
            "steps_fp16": totals.steps[Mode.FP16],
            "steps_fp8": totals.steps[Mode.FP8],
            "steps_mixed": totals.steps_mixed,
            "fp8_reasons": dict(totals.fp8_reasons),
            "tokens_fp16": totals.tokens[Mode.FP16],
            "tokens_fp8": totals.tokens[Mode.FP8],
            **(totals.drafts() if self.num_spec_tokens else {}),
            "fp16_only": self._fp16_only,
            "fp8_weight_share": self._fp8_share,
            "kv_cache": "fp8" if self._rounds_kv else "fp16",
            "fp8_pays_from_tokens": None if self._step_costs is None else self._step_costs.fp8_pays_from(),
            "step_ms_fp16": totals.step_ms[Mode.FP16],
            "step_ms_fp8": totals.step_ms[Mode.FP8],
            "step_s_fp16": totals.seconds[Mode.FP16],
            "step_s_fp8": totals.seconds[Mode.FP8],
            "waiting": len(waiting),
            "blocked": len(self._blocked),
            "waiting_tokens": waiting_tokens,
            **self._room_stats(waiting_tokens),
            "oldest_wait_s": self._oldest_wait_s(),
            "progress_age_s": self._progress_age_s(),
            "running": len(self.running),
            "kv_usage": float(self.kv_cache_manager.usage),
            "arrivals": self._arrivals,
            "arrived_tokens": self._arrived_tokens,
            "finished": self._finished,
        }

    def _room_stats(self, waiting_tokens: int) -> dict[str, Any]:
        """Return what the engine computes in a second, and what it can take of prompts, where the rule asks for it."""
        directive, rule, _ = self._in_force
        mode = Mode.FP16 if directive is DirectiveMode.FP16 or self._fp16_only else Mode.FP8
        now_s = steady_s()
        room = self._watch.room(
            rule,
            mode,
            now_s,
            decodes=self._decode_rows,
            line_tokens=waiting_tokens,
            ends_s=self._watch.ends_s,
            slack_s=self._slack_s(rule, now_s),
            rows_per_s=self._rows.load.rows_per_s(now_s),
        )
        return {
            "exact_tokens_per_s": self._watch.capacity_tokens_per_s(rule, Mode.FP16),
            "fast_tokens_per_s": self._watch.capacity_tokens_per_s(rule, mode if self._fp16_only else Mode.FP8),
            "room": None if room is None else asdict(room),
        }

    def _slack_s(self, rule: StepRule, now_s: float) -> float:
        """Return how long it is until the next token of a running request is due; infinity: of none, or the rule does not ask."""
        if rule.room_ttft_s is None or rule.exact_step_s is None:
            return inf
        others = self._in_prompt.keys() | self._may_starve.keys()
        decodes = (request for request in self.running if request.request_id not in others)
        grace = rule.tpot_grace_tokens
        return min((next_due_s(each, rule.exact_step_s, grace, now_s) for each in decodes), default=inf) - now_s

    @property
    def _decode_rows(self) -> int:
        """Rows of a step for the requests that get tokens in every one: their last token and its drafts."""
        decodes = len(self.running) - sum(r.status is RequestStatus.RUNNING for r in self._in_prompt.values())
        return decodes * (1 + self.num_spec_tokens)

    def _oldest_wait_s(self) -> float:
        """Return how long a request that has a deadline has waited for its turn at most."""
        with_deadline = (request for request in self._turn_waiting() if request.request_id not in self._may_starve)
        return max((steady_s() - request.nestedfp_waits_since_s for request in with_deadline), default=0.0)

    def _progress_age_s(self) -> float | None:
        """Return for how long there has been work and no step has ended; None: nothing to do, or the engine is paused."""
        if not self.get_num_unfinished_requests():  # so it is in a pause as well
            self._progress_s = steady_s()
            return None
        return steady_s() - self._progress_s if self.running or self._any_waits() else None
