"""The front end's part: checks each request's pin, and collects the token counts that the engine sends along.

``install`` wraps two methods: ``InputProcessor.process_inputs``, through which every request of every front end goes, and
``OutputProcessor.process_outputs``, which receives every output of the engine. Both run in the front-end process.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from nestedfp.vllm_plugin.accounting import COUNTS_KEY, usage_of
from nestedfp.vllm_plugin.pin import PIN_KEY, parse_pin


class TokenLedger:
    """Token counts of the requests in flight, by the request id that the caller of the engine gave.

    One id may stand for several sequences (``n > 1``): each prompt is counted once, completions are added up.
    Entries are taken out by the response that reports them; the oldest are dropped beyond ``capacity``, so that requests
    nobody asks for cannot pile up.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[str, dict[str, list[int]]] = OrderedDict()

    def record(self, request_id: str, sequence_id: str, counts: list[int]) -> None:
        """Store the counts so far of one sequence: four counters and the number of prompt tokens."""
        self._counts.setdefault(request_id, {})[sequence_id] = counts
        while len(self._counts) > self._capacity:
            self._counts.popitem(last=False)

    def usage(self, request_ids: list[str]) -> dict[str, Any] | None:
        """Return ``usage.precision_tokens`` over all given requests, or None when nothing is known of any of them."""
        known = [self._counts[rid] for rid in request_ids if rid in self._counts]
        if not known:
            return None
        total = [0, 0, 0, 0]
        prompt_tokens = 0
        for sequences in known:
            first = next(iter(sequences.values()))
            total[0] += first[0]
            total[1] += first[1]
            prompt_tokens += first[4]
            for counts in sequences.values():
                total[2] += counts[2]
                total[3] += counts[3]
        return usage_of(total, prompt_tokens)

    def matching(self, response_id: str) -> list[str]:
        """Return the ids of the requests of one response: vLLM numbers the prompts of a completion ``<id>-0``, ``-1``."""
        if response_id in self._counts:
            return [response_id]
        ids = []
        while (numbered := f"{response_id}-{len(ids)}") in self._counts:
            ids.append(numbered)
        return ids

    def discard(self, request_ids: list[str]) -> None:
        """Forget requests; unknown ids are no error."""
        for rid in request_ids:
            self._counts.pop(rid, None)

    def __len__(self) -> int:
        return len(self._counts)


LEDGER = TokenLedger()
_observers: list[Callable[[list[float], list[float]], None]] = []
_finish_observers: list[Callable[[list[tuple[float, float | None]]], None]] = []


def observe_latencies(observer: Callable[[list[float], list[float]], None]) -> None:
    """Call ``observer(times to first token, inter-token times)``, in seconds, after every output of the engine."""
    _observers.append(observer)


def observe_finished(observer: Callable[[list[tuple[float, float | None]]], None]) -> None:
    """Call ``observer`` with (time to first token, mean time per output token) of requests that have ended, in seconds.

    Only of those that ended by themselves: an aborted request says nothing about the service. The second is None for a
    single token.
    """
    _finish_observers.append(observer)


def finished_latencies(requests: list[Any]) -> list[tuple[float, float | None]]:
    """Latencies of vLLM's ``FinishedRequestStats``; the time to first token is all that was not decoding."""
    return [
        (
            max(0.0, stats.e2e_latency - stats.decode_time),
            stats.mean_time_per_output_token if stats.num_generation_tokens > 1 else None,
        )
        for stats in requests
        if str(stats.finish_reason) in ("stop", "length")
    ]


def check_pin(extra_args: dict[str, Any] | None) -> None:
    """Check the pin of a request.

    Raises:
        VLLMValidationError: answered as HTTP 400.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        parse_pin(extra_args)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter=f"vllm_xargs.{PIN_KEY}") from None


def install() -> None:
    """Wrap the two methods. Idempotent."""
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor

    if getattr(InputProcessor.process_inputs, "_nestedfp", False):
        return
    process_inputs, process_outputs = InputProcessor.process_inputs, OutputProcessor.process_outputs

    @functools.wraps(process_inputs)
    def checked(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        check_pin(getattr(params, "extra_args", None))
        return process_inputs(self, request_id, prompt, params, *args, **kwargs)

    @functools.wraps(process_outputs)
    def collected(self: Any, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            params = output.kv_transfer_params
            if params and (counts := params.pop(COUNTS_KEY, None)) is not None:
                output.kv_transfer_params = params or None
                state = self.request_states.get(output.request_id)
                if state is not None:
                    LEDGER.record(state.external_req_id, output.request_id, counts)
        stats = kwargs.get("iteration_stats", args[1] if len(args) > 1 else None)
        if stats is None or not (_observers or _finish_observers):
            return process_outputs(self, engine_core_outputs, *args, **kwargs)
        # One statistics object may collect several calls: only what this call adds is new.
        seen = (
            len(stats.time_to_first_tokens_iter),
            len(stats.inter_token_latencies_iter),
            len(stats.finished_requests),
        )
        result = process_outputs(self, engine_core_outputs, *args, **kwargs)
        for observer in _observers:
            observer(stats.time_to_first_tokens_iter[seen[0] :], stats.inter_token_latencies_iter[seen[1] :])
        if len(stats.finished_requests) > seen[2]:
            latencies = finished_latencies(stats.finished_requests[seen[2] :])
            for finish_observer in _finish_observers:
                finish_observer(latencies)
        return result

    checked._nestedfp = True  # type: ignore[attr-defined]
    InputProcessor.process_inputs = checked  # type: ignore[method-assign]
    OutputProcessor.process_outputs = collected  # type: ignore[method-assign]
