"""Answers the routes that the engine computes for: those of text, and those of vectors."""

import asyncio
import json
import logging
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deploy.access.admission import Admission, NoRoom, Place, Reason
from deploy.access.keys import Holder, Keys, Limited
from deploy.access.priority import NotAllowed, Ranked, ranked
from deploy.front import streams
from deploy.front.checks import faults
from deploy.front.checks.bodies import Bodies
from deploy.front.checks.bounds import check_length
from deploy.front.checks.faults import in_our_words, one_line
from deploy.front.checks.requests import (
    apply_precision,
    parse,
    queue_deadline_s,
    stated_precision,
    stated_priority,
)
from deploy.front.checks.values import MOST_IDS
from deploy.front.deadline import Queue, QueueDeadline
from deploy.front.effects.ignored import ignored
from deploy.front.handover import TURN, Handover, Turn, prompt_tokens_of
from deploy.front.meter import Passage, PathMeter
from deploy.front.peers import RETRYABLE_BODY_BYTES, Elsewhere, PeerView
from deploy.front.replies import OVERLOADED, Refused, reply, request_id_of
from deploy.front.routes import vectors
from deploy.front.routes.route import Route, tokens_of
from deploy.front.tap import Tap, Taps
from deploy.haproxy.haproxy_config import ELSEWHERE_STATUS, MOST_TRIES
from deploy.metrics.request_metrics import RequestOutcome
from deploy.replica.health_routes import GivenUp
from deploy.replica.tracing import below_this_span
from nestedfp.answers import Answer
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.frontend import Collected, collected, counts_of, total, usage_of
from nestedfp.vllm_plugin.options import KV_IS_FP8
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, AskedPrecision
from nestedfp.vllm_plugin.serving.disclosure import disclose

log = logging.getLogger(__name__)

# By a directive, for requests that leave it to the service.
DECIDED = {Mode.FP16.value: AskedPrecision.EXACT, Mode.FP8.value: AskedPrecision.FAST}
INEXACT_RETRY_AFTER_S = 60
IGNORED_HEADER = b"x-nestedfp-ignored"
NONE_LEFT = "max_tokens must be at least 1, got 0."  # vLLM, also where the prompt fills the whole context
ANSWERS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # the fields that say how long
ERROR_EVENTS = ('data: {"error"', "event: error\n")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


@dataclass(frozen=True)
class Queueing:
    """How requests wait for the engine.

    Attributes:
        deadline_s: from the arrival, for requests that say nothing; None: as long as it takes.
        by_priority: the engine begins the ones of a lower number first (vLLM's ``scheduling_policy``).
        queue: of the engine; None: it cannot be asked which requests it has begun.
    """

    deadline_s: float | None = None
    by_priority: bool = False
    queue: Queue | None = None


class Generate:
    """Answers the routes that the engine computes for.

    Args:
        routes: by path.
        client: vLLM's ``AsyncLLM``.
        admission: the replica's admission control.
        meter: of the path.
        standing: what the controller has said about this replica and its peers.
        max_body_bytes: largest body.
        keys: who may ask; without: everybody.
        queueing: how requests wait for the engine.
        traced: requests have spans, and the engine makes children of them.
        taps: the short way of plain streams; without: all go vLLM's.
        inexact: why no answer of this engine can be exact; None: it can.
    """

    def __init__(
        self,
        routes: dict[str, Route],
        client: Any,
        admission: Admission,
        meter: PathMeter,
        standing: PeerView,
        max_body_bytes: int,
        keys: Keys | None = None,
        queueing: Queueing = Queueing(),
        traced: bool = False,
        taps: Taps | None = None,
        inexact: str | None = None,
    ) -> None:
        self._traced = traced
        self.keys = keys or Keys()
        self.routes = routes
        self._client = client
        self._admission = admission
        self._meter = meter
        self._standing = standing
        self.bodies = Bodies(max_body_bytes)
        self._queueing = queueing
        self._elsewhere = Elsewhere()
        self._taps = taps or Taps({})
        self._inexact = inexact

    async def __call__(self, route: Route, scope: Any, receive: Any, send: Any, arrived_s: float) -> None:
        passage = self._meter.arrive(arrived_s)
        passage.id = request_id_of(scope)
        try:
            await self._admitted(route, scope, receive, send, passage)
        except Refused as refusal:
            passage.outcome, passage.status = refusal.outcome, refusal.status
            await reply(send, refusal.status, route.error(refusal, passage.id), refusal.headers())
        except asyncio.CancelledError:
            passage.outcome = RequestOutcome.LEFT
            raise
        except BaseException:
            passage.outcome = RequestOutcome.FAILED
            raise
        finally:
            passage.ended()

    async def _admitted(self, route: Route, scope: Any, receive: Any, send: Any, passage: Passage) -> None:
        headers = dict(scope["headers"])
        holder = self.keys.of(headers)
        passage.key = None if holder is None else holder.name
        body = await self.bodies.read(receive)
        longest = self._admission.longest
        async with self.bodies.parsing(len(body)):
            request = parse(body, headers, route.model, route.check, max(MOST_IDS, longest or 0))
        asked = route.asks(request)
        check_length(asked.prompts, asked.prompt_tokens, longest)
        passage.model = request.model
        stated = stated_precision(request, headers)
        passage.asked = stated or AskedPrecision.AUTO
        if holder is not None:
            passage.asked = holder.asked(stated)
        apply_precision(request, passage.asked)
        pinned, size = passage.pinned, len(body)
        if pinned and self._inexact is not None:
            raise Refused(
                503,
                f"no answer can be exact: {self._inexact}; ask for 'fast' or 'auto'",
                OVERLOADED,
                retry_after_s=INEXACT_RETRY_AFTER_S,
            )
        if self._client.errored:
            raise self._dead(headers, size, "this replica's engine has died; it is being replaced")
        if (fault := self._standing.fault) is not None:
            raise self._dead(headers, size, f"this replica cannot take requests: {fault}")
        if self._standing.engine_is_late and self._standing.replicas > 1 and self._elsewhere.may_go(headers, size):
            raise Refused(ELSEWHERE_STATUS, "this replica's engine does not answer now")
        if pinned and self._standing.pinned_go_elsewhere() and self._elsewhere.may_go(headers, size):
            raise Refused(ELSEWHERE_STATUS, "another replica runs exact FP16")
        rank = self._rank(request, headers, holder, pinned)
        deadline_s = queue_deadline_s(request, headers, self._queueing.deadline_s)
        left_s = None if deadline_s is None else max(0.0, deadline_s - (self._meter.clock() - passage.arrived_s))
        try:
            place = self._admission.enter(asked, rank.priority, left_s)
        except NoRoom as no_room:
            raise self._full(no_room, headers, size) from None
        turn: Turn | None = None
        with ExitStack() as entered:
            entered.callback(lambda: place.leave(passage.answer_tokens, answered=turn is not None and turn.accepted))
            at_s = None if deadline_s is None else passage.arrived_s + deadline_s
            turn = self._turn(route, request, passage, place, rank, at_s, headers, size)
            turn.body_bytes, turn.estimated_tokens = size, asked.prompt_tokens
            entered.callback(turn.ended)
            if holder is not None:
                self._take_from_quota(holder, pinned, headers, size)
                entered.callback(lambda: holder.leave(passage.used_tokens, pinned))
            passed_over = ", ".join(ignored(request, body, headers))[:500].encode("ascii", "replace")
            notes = [(IGNORED_HEADER, passed_over)] if passed_over else []
            if route.computes:
                notes.append((PIN_HEADER.encode(), self._decided(passage.asked).encode()))
            await self._answer(route, request, scope, send, turn, headers, size, notes)

    def _decided(self, asked: AskedPrecision) -> str:
        """What an answer that begins now will be, as far as anybody knows."""
        decided = DECIDED.get(self._standing.directed, asked) if asked is AskedPrecision.AUTO else asked
        if decided is AskedPrecision.EXACT and self._inexact is not None:
            return Answer.WEIGHTS_EXACT.value if self._inexact == KV_IS_FP8 else AskedPrecision.AUTO.value
        return decided.value

    def _rank(self, request: Any, headers: dict[bytes, bytes], holder: Holder | None, pinned: bool) -> Ranked:
        own, anything = (None, True) if holder is None else (holder.priority, False)
        try:
            return ranked(stated_priority(request, headers), own, anything=anything, pinned=pinned)
        except NotAllowed as error:
            raise Refused(403, str(error), param="priority") from None

    def _turn(
        self,
        route: Route,
        request: Any,
        passage: Passage,
        place: Place,
        rank: Ranked,
        at_s: float | None,
        headers: dict[bytes, bytes],
        size: int,
    ) -> Turn:
        def late(in_engine: bool) -> Refused:
            passage.prompt_tokens = passage.read_tokens = 0  # nobody has computed them
            no_room = self._admission.late(rank.priority, in_engine)
            return Refused(503, str(no_room), OVERLOADED, retry_after_s=no_room.retry_after_s)

        return Turn(
            route.is_plain(request),
            passage,
            None
            if getattr(request, "use_beam_search", False)
            else place,  # beams are requests of one token each: the estimate stands
            None if at_s is None else QueueDeadline(at_s, late, self._queueing.queue, self._meter.clock),
            rank.engine if self._queueing.by_priority else 0,
            lambda no_room: self._full(no_room, headers, size),
        )

    def _full(self, no_room: NoRoom, headers: dict[bytes, bytes], size: int) -> Refused:
        """What a client hears that finds no room; where there is another replica, that one is asked first."""
        status, replicas = 503 if no_room.reason is Reason.DEADLINE else 429, self._standing.replicas
        if not self._elsewhere.came_back(headers):  # then all have counted their parts of it
            elsewhere = replicas > 1 and self._elsewhere.may_go(headers, size)
            self._admission.turned_away(no_room, min(replicas, MOST_TRIES) if elsewhere else 1)
            status = ELSEWHERE_STATUS if elsewhere else status
        return Refused(status, str(no_room), OVERLOADED, retry_after_s=no_room.retry_after_s)

    def _take_from_quota(self, holder: Holder, pinned: bool, headers: dict[bytes, bytes], size: int) -> None:
        try:
            holder.enter(pinned)
        except Limited as limited:
            if self._standing.replicas > 1 and self._elsewhere.may_go(headers, size):
                raise limited.elsewhere() from None
            raise

    def _dead(self, headers: dict[bytes, bytes], size: int, message: str) -> Refused:
        # Everything goes on from here, whether or not the controller has told of another replica.
        status = ELSEWHERE_STATUS if self._elsewhere.may_go(headers, size) else 503
        return Refused(status, message)

    async def _answer(
        self,
        route: Route,
        request: Any,
        scope: Any,
        send: Any,
        turn: Turn,
        headers: dict[bytes, bytes],
        size: int,
        notes: list[tuple[bytes, bytes]],
    ) -> None:
        passage = turn.passage
        turn.given = {name: vars(request).get(name) for name in request.model_fields_set}
        TURN.set(turn)
        with collected() as counts:
            passage.counts = counts
            # Beams are requests of one token each, most of them not in the answer: their tokens are not those of its usage.
            told = Collected() if getattr(request, "use_beam_search", False) else counts
            try:
                inner = below_this_span(scope) if self._traced else scope
                result = await getattr(route.serving, route.method)(request, Request(inner))
                _check_here()
                if isinstance(result, Handover):
                    await self._write(result, send, passage, notes)
                elif hasattr(result, "__anext__"):
                    await self._relay(route, result, request, send, passage, notes, told)
                elif isinstance(result, Response):
                    await self._reply_vectors(result, send, passage, notes, counts)
                else:
                    await self._reply(route, result, send, notes, told)
                    _observe(turn.finished, passage)
            except asyncio.CancelledError:
                raise
            except Refused as refusal:
                refusal.param = faults.place(refusal.param, "", turn.given)
                raise
            except Exception as error:
                raise self._explained(error, passage, headers, size) from error

    def _explained(self, error: Exception, passage: Passage, headers: dict[bytes, bytes], size: int) -> Refused:
        """What a client hears of an exception that came before its answer began."""
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
        from vllm.exceptions import GenerationError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        # Also what vLLM stumbles over while it takes a dead engine's parts down.
        if isinstance(error, EngineDeadError) or (self._client.errored and not isinstance(error, GivenUp)):
            message = "the engine has died; it is being replaced"
            if passage.submitted_s is None:
                return self._dead(headers, size, message)
            # Not offered to another replica: the request may be what killed this one.
            return Refused(503, f"{message}; this request was in it")
        if isinstance(error, GivenUp):
            return Refused(503, f"{error}; this request was in it and is given up")
        accepted = (turn := TURN.get()) is not None and turn.accepted
        failed = isinstance(error, (EngineGenerateError, GenerationError))
        if not accepted and isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        info = create_error_response(error).error
        if turn is not None and turn.constrained and failed:
            where = faults.place("structured_outputs", "", turn.given)
            return Refused(400, "the grammar has no way on from the text so far", param=where)
        if info.code == 500 and not (failed and accepted):
            # Before the engine's first token, or in vLLM's own handling of it, nothing but the request's content can be at
            # fault.
            log.warning("request refused: %s: %s", type(error).__name__, one_line(error))
            return Refused(400, f"the request cannot be processed: {one_line(error)}")
        if info.code >= 500:
            log.error("request failed: %s: %s", type(error).__name__, one_line(error))
            return Refused(info.code, "the engine failed on this request")
        return self._of_vllm(info.code, info.message, info.param)

    def _of_vllm(self, status: int, message: str, param: str | None) -> Refused:
        """Return a refusal of vLLM's in this service's words, at the field of the client's own."""
        given = {} if (turn := TURN.get()) is None else turn.given
        text = in_our_words(message)
        where = faults.place(param, text, given)
        if text == NONE_LEFT and not any(given.get(name) == 0 for name in ANSWERS):
            longest = self._client.vllm_config.model_config.max_model_len
            text, where = faults.no_room(longest, longest), faults.place("input_tokens", "", given)
        elif param == "max_tokens" and where not in (None, param):
            text = text.replace(param, str(where), 1)
        return Refused(status, text, param=where)

    # -- streams -------------------------------------------------------------------------------------------------------

    async def _write(self, stream: Handover, send: Any, passage: Passage, notes: list[Any]) -> None:
        """Write a plain stream from the engine's outputs. What went wrong before the first byte is raised."""
        frame, call = stream.frame, stream.call
        collector = await call.start()
        passage.prompt_tokens = prompt_tokens_of(call.prompt)
        passage.submitted()
        begun = False
        prompt_tokens = 0
        tap: Tap | None = None
        try:
            while True:
                # Without a switch of tasks where outputs wait already; vLLM has merged those that came meanwhile.
                output = collector.get_nowait() or await (tap or collector).get()
                part = output.outputs[0]
                new_tokens = len(part.token_ids)
                passage.completion_tokens += new_tokens
                if new_tokens and not begun and (turn := TURN.get()) is not None:
                    turn.first_token()
                if output.prompt_token_ids is not None:
                    prompt_tokens = len(output.prompt_token_ids)
                if output.finished:
                    _check_end(part.finish_reason, begun)
                    data = frame.last(
                        part.text,
                        part.finish_reason,
                        part.stop_reason,
                        prompt_tokens,
                        passage.completion_tokens,
                        counts_of(output),
                    )
                elif not part.text and not new_tokens and not begun:
                    continue  # a part of the prompt was computed
                else:
                    data = frame.text(part.text)
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": [EVENT_STREAM, *notes]})
                    data = frame.first + data
                    tap = self._taps.open(collector, frame, passage, send)
                passage.writing()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                passage.wrote(new_tokens)
                if output.finished:
                    await send({"type": "http.response.body", "body": b""})
                    passage.finished(_of_engine(output.metrics))
                    return
        except asyncio.CancelledError:
            await call.abort(collector)
            raise
        except Exception as error:
            if not begun:
                raise
            await call.abort(collector)
            refusal = self._explained(error, passage, {}, RETRYABLE_BODY_BYTES + 1)
            passage.outcome = refusal.outcome
            await send({"type": "http.response.body", "body": streams.error_events(refusal.body(passage.id))})
        finally:
            if tap is not None:
                tap.close()
            collector.close()

    async def _relay(
        self,
        route: Route,
        result: Any,
        request: Any,
        send: Any,
        passage: Passage,
        notes: list[Any],
        counts: Collected,
    ) -> None:
        """Pass on the events of vLLM's own generator, with the disclosure added. What goes wrong before the first is raised."""
        discloser = route.discloser(request, counts, lambda: passage.prompt_tokens)
        turn = TURN.get()
        begun = failed = False
        try:
            async with aclosing(route.events(result)) as events:
                async for event in events:
                    if event.startswith(ERROR_EVENTS):
                        raise self._of_event(event, turn)
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": [EVENT_STREAM, *notes]})
                    passage.writing()
                    data = discloser.event(event).encode()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    passage.wrote(1)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not begun:
                raise
            failed = True
            refusal = (
                error if isinstance(error, Refused) else self._explained(error, passage, {}, RETRYABLE_BODY_BYTES + 1)
            )
            data = route.last_words(route.error(refusal, passage.id))
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        if failed:
            passage.outcome = RequestOutcome.FAILED
        else:
            passage.finished()

    def _of_event(self, event: str, turn: Turn | None) -> Exception:
        """Return what went wrong, of an event with an error that vLLM has made of it."""
        if turn is not None and (raised := turn.refused or turn.failed) is not None:
            return raised
        error = json.loads(event.partition("data: ")[2])["error"]
        code = error.get("code")
        return self._of_vllm(code if isinstance(code, int) else 500, error["message"], error.get("param"))

    # -- answers in one piece ------------------------------------------------------------------------------------------

    async def _reply(self, route: Route, result: Any, send: Any, notes: list[Any], counts: Collected) -> None:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        if isinstance(result, ErrorResponse):
            raise self._of_vllm(result.error.code, result.error.message, result.error.param)
        answer = route.answer(result)
        if (tokens := tokens_of(counts)) is not None:
            answer["usage"] = disclose(answer.get("usage"), tokens, whole=counts.whole)
        await reply(send, 200, msgspec.json.encode(answer), notes)

    async def _reply_vectors(
        self, result: Any, send: Any, passage: Passage, notes: list[Any], counts: dict[str, Any]
    ) -> None:
        body, kind, headers = await vectors.disclosed(result, usage_of(total(counts.values())))
        # The first byte is the last one.
        now_s = self._meter.clock()
        passage.finished_in_one_piece(now_s - (passage.submitted_s or now_s), 0.0, 1)
        await reply(send, 200, body, [*headers, *notes], kind)


def _check_here() -> None:
    """Raise where the client has left: vLLM takes the cancellation for itself and answers with an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _check_end(finish_reason: str, begun: bool) -> None:
    """Raise where a sequence did not end by itself: its queue deadline was up, the engine failed."""
    if not begun and (turn := TURN.get()) is not None and turn.withdrawn is not None:
        raise turn.withdrawn
    if finish_reason == "error":
        from vllm.exceptions import GenerationError

        raise GenerationError("the engine ended the request with an error")


def _of_engine(metrics: Any) -> tuple[float, float | None] | None:
    """Return TTFT and time per token, seconds, by the engine's own clock, from its queue on; None: it has not told."""
    if metrics is None or not metrics.queued_ts or not metrics.first_token_ts:
        return None
    tokens = metrics.num_generation_tokens
    tpot_s = (metrics.last_token_ts - metrics.first_token_ts) / (tokens - 1) if tokens > 1 else None
    return metrics.first_token_ts - metrics.queued_ts, tpot_s


def _observe(outputs: list[Any], passage: Passage) -> None:
    """Take the latencies of an answer in one piece from the engine's account of its slowest sequence."""
    known = [output.metrics for output in outputs if output.metrics is not None]
    if known:
        slowest = max(known, key=lambda metrics: metrics.first_token_latency)
        decode_s = slowest.last_token_ts - slowest.first_token_ts
        tokens = slowest.num_generation_tokens
        passage.finished_in_one_piece(slowest.first_token_latency, decode_s, tokens, _of_engine(slowest))
