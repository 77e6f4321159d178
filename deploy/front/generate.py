"""Answers the routes that the engine computes for."""

import asyncio
import enum
import json
from contextlib import ExitStack, aclosing
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from deploy.access.admission import Admission, NoRoom, Reason
from deploy.access.keys import Holder, Keys, Limited
from deploy.access.peers import Elsewhere, PeerView
from deploy.access.priority import Priority, Ranked, ranked
from deploy.front.checks import faults
from deploy.front.checks.requests import (
    MOST_IDS,
    Bodies,
    apply_precision,
    check_length,
    parse,
    queue_deadline_s,
    stated_precision,
    stated_priority,
)
from deploy.front.context import CONTEXT, PathMeter, RequestContext
from deploy.front.handover import GenerateCall
from deploy.front.replies import OVERLOADED, Refused, refuse, reply, request_id_of
from deploy.front.routes.text import Route, tokens_of
from deploy.front.streams import Tap, Taps
from deploy.haproxy.haproxy_config import ELSEWHERE_STATUS, MOST_TRIES
from deploy.metrics.request_metrics import RequestOutcome
from deploy.replica.health_routes import GivenUp
from nestedfp.answers import Answer
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.frontend import Collected, collected, total
from nestedfp.vllm_plugin.options import KV_IS_FP8
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, AskedPrecision
from nestedfp.vllm_plugin.serving.disclosure import disclose

# By a directive, for requests that leave it to the service.
DECIDED = {Mode.FP16.value: AskedPrecision.EXACT, Mode.FP8.value: AskedPrecision.FAST}
INEXACT_RETRY_AFTER_S = 60
ERROR_EVENTS = ('data: {"error"', "event: error\n")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class Queueing(NamedTuple):
    """How requests wait for the engine."""

    deadline_s: float | None = None  # from the arrival, for requests that say nothing; None: as long as it takes
    by_priority: bool = False  # the engine begins the ones of a lower number first (vLLM's ``scheduling_policy``)


class Inexact(enum.StrEnum):
    """Why no answer of an engine can be exact, in words for its clients."""

    KV_CACHE = KV_IS_FP8
    CHECKPOINT = "this engine runs its checkpoint's own quantization"


@dataclass(eq=False)
class Generate:
    """Answers the routes that the engine computes for."""

    routes: dict[str, Route]  # by path
    client: Any  # vLLM's ``AsyncLLM``
    admission: Admission
    meter: PathMeter
    standing: PeerView  # what the controller has said about this replica and its peers
    max_body_bytes: InitVar[int]
    keys: Keys = field(default_factory=Keys)  # who may ask; without: everybody
    queueing: Queueing = field(default_factory=Queueing)
    taps: Taps = field(default_factory=lambda: Taps({}))  # the short way of plain streams; without: all go vLLM's
    inexact: Inexact | None = None  # why no answer of this engine can be exact; None: it can

    def __post_init__(self, max_body_bytes: int) -> None:
        self.bodies = Bodies(max_body_bytes)
        self._elsewhere = Elsewhere()

    async def __call__(self, route: Route, scope: Any, receive: Any, send: Any, arrived_s: float) -> None:
        context = self.meter.arrive(arrived_s)
        context.id = request_id_of(scope)
        try:
            await self._admitted(route, scope, receive, send, context)
        except Refused as refusal:
            context.outcome, context.status = refusal.outcome, refusal.status
            await refuse(send, refusal, context.id)
        except asyncio.CancelledError:
            context.outcome = RequestOutcome.LEFT
            raise
        except BaseException:
            context.outcome = RequestOutcome.FAILED
            raise
        finally:
            self.meter.left(context)

    async def _admitted(self, route: Route, scope: Any, receive: Any, send: Any, context: RequestContext) -> None:
        headers = context.headers = dict(scope["headers"])
        holder = self.keys.of(headers)
        context.key = None if holder is None else holder.name
        body = await self.bodies.read(receive)
        context.body_bytes = len(body)
        longest = self.admission.longest
        async with self.bodies.parsing(len(body)):
            request = parse(body, headers, route.model, route.check, max(MOST_IDS, longest or 0))
        asked = route.asks(request)
        check_length(asked.prompts, asked.prompt_tokens, longest)
        context.model, context.estimated_tokens = request.model, asked.prompt_tokens
        stated = stated_precision(request, headers)
        context.asked = stated or AskedPrecision.AUTO
        if holder is not None:
            context.asked = holder.asked(stated)
        apply_precision(request, context.asked)
        self._check_taken_here(context)
        rank = _rank(request, headers, holder, context.pinned)
        if self.queueing.by_priority:
            context.priority = rank.engine
        if (deadline_s := queue_deadline_s(request, headers, self.queueing.deadline_s)) is not None:
            context.reach_by_s = context.arrived_s + deadline_s
            context.late = partial(self._late, context, rank.priority)
        try:
            place = self.admission.enter(asked, rank.priority, context.left_s)
        except NoRoom as no_room:
            raise self._full(no_room, context) from None
        beams = getattr(request, "use_beam_search", False)
        with ExitStack() as entered:
            entered.callback(lambda: place.leave(context.answer_tokens))
            context.place = None if beams else place  # beams are requests of one token each: the estimate stands
            context.refusal = lambda no_room: self._full(no_room, context)
            context.plain = route.is_plain(request)
            if holder is not None:
                try:
                    holder.enter(context.pinned)
                except Limited as limited:
                    raise limited.elsewhere() if self._goes_elsewhere(context) else limited from None
                entered.callback(lambda: holder.leave(context.used_tokens, context.pinned))
            context.notes.append((PIN_HEADER.encode(), self._decided(context.asked).encode()))
            context.given = {name: vars(request).get(name) for name in request.model_fields_set}
            await self._answer(route, request, scope, send, context)

    def _check_taken_here(self, context: RequestContext) -> None:
        """Look whether this replica can take a request of this precision.

        Raises:
            Refused: it cannot, or another one had better.
        """
        if context.pinned and self.inexact is not None:
            raise Refused(
                503,
                f"no answer can be exact: {self.inexact}; ask for 'fast' or 'auto'",
                OVERLOADED,
                retry_after_s=INEXACT_RETRY_AFTER_S,
            )
        if self.client.errored:
            raise self._dead(context, "this replica's engine has died; it is being replaced")
        if (fault := self.standing.fault) is not None:
            raise self._dead(context, f"this replica cannot take requests: {fault}")
        if self.standing.engine_is_late and self._goes_elsewhere(context):
            raise Refused(ELSEWHERE_STATUS, "this replica's engine does not answer now")

    def _decided(self, asked: AskedPrecision) -> str:
        """What an answer that begins now will be, as far as anybody knows."""
        decided = DECIDED.get(self.standing.directed, asked) if asked is AskedPrecision.AUTO else asked
        if decided is AskedPrecision.EXACT and self.inexact is not None:
            return Answer.WEIGHTS_EXACT.value if self.inexact is Inexact.KV_CACHE else AskedPrecision.AUTO.value
        return decided.value

    def _late(self, context: RequestContext, priority: Priority) -> Refused:
        context.read_tokens = 0  # nothing came of it
        no_room = self.admission.late(priority)
        return Refused(503, str(no_room), OVERLOADED, retry_after_s=no_room.retry_after_s)

    def _goes_elsewhere(self, context: RequestContext) -> bool:
        return self.standing.replicas > 1 and self._elsewhere.may_go(context.headers, context.body_bytes)

    def _full(self, no_room: NoRoom, context: RequestContext) -> Refused:
        """What a client hears that finds no room; where there is another replica, that one is asked first."""
        status = 503 if no_room.reason is Reason.DEADLINE else 429
        if not self._elsewhere.came_back(context.headers):  # then all have counted their parts of it
            elsewhere = self._goes_elsewhere(context)
            self.admission.turned_away(no_room, min(self.standing.replicas, MOST_TRIES) if elsewhere else 1)
            status = ELSEWHERE_STATUS if elsewhere else status
        return Refused(status, str(no_room), OVERLOADED, retry_after_s=no_room.retry_after_s)

    def _dead(self, context: RequestContext, message: str) -> Refused:
        # Everything goes on from here, whether or not the controller has told of another replica.
        elsewhere = not context.begun and self._elsewhere.may_go(context.headers, context.body_bytes)
        return Refused(ELSEWHERE_STATUS if elsewhere else 503, message)

    async def _answer(self, route: Route, request: Any, scope: Any, send: Any, context: RequestContext) -> None:
        CONTEXT.set(context)
        with collected() as counts:
            context.counts = counts
            # Beams are requests of one token each, most of them not in the answer: their tokens are not those of its usage.
            told = Collected() if getattr(request, "use_beam_search", False) else counts
            try:
                result = await getattr(route.serving, route.method)(request, Request(scope))
                _check_here()
                if isinstance(result, GenerateCall):
                    await self._write(result, send, context)
                elif hasattr(result, "__anext__"):
                    await self._relay(route, result, request, send, context, told)
                else:
                    await self._reply(route, result, send, context, told)
                    context.observe()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                refusal = error if isinstance(error, Refused) else self._explained(error, context)
                refusal.param = faults.place(refusal.param, context.given)
                if not context.begun:
                    raise refusal from None
                context.outcome = refusal.outcome
                await send({"type": "http.response.body", "body": route.last_words(refusal.body(context.id))})

    def _explained(self, error: Exception, context: RequestContext) -> Refused:
        """What a client hears of an exception of vLLM's."""
        from vllm.v1.engine.exceptions import EngineDeadError

        # Also what vLLM stumbles over while it takes a dead engine's parts down.
        if isinstance(error, EngineDeadError) or (self.client.errored and not isinstance(error, GivenUp)):
            message = "the engine has died; it is being replaced"
            if context.submitted_s is None:
                return self._dead(context, message)
            # Not offered to another replica: the request may be what killed this one.
            return Refused(503, f"{message}; this request was in it")
        if isinstance(error, GivenUp):
            return Refused(503, f"{error}; this request was in it and is given up")
        begun = context.answer_tokens > 0
        return faults.of_engine(error, context.given, begun, context.constrained, self.admission.longest)

    # -- streams -------------------------------------------------------------------------------------------------------

    async def _write(self, call: GenerateCall, send: Any, context: RequestContext) -> None:
        """Write a plain stream from the engine's outputs."""
        frame = call.frame
        assert frame is not None, "take_over has given it one"
        collector = await call.start(context)
        prompt_tokens = 0
        tap: Tap | None = None
        try:
            while True:
                # Without a switch of tasks where outputs wait already; vLLM has merged those that came meanwhile.
                output = collector.get_nowait() or await (tap or collector).get()
                part = output.outputs[0]
                new_tokens = len(part.token_ids)
                context.completion_tokens += new_tokens
                if output.prompt_token_ids is not None:
                    prompt_tokens = len(output.prompt_token_ids)
                if output.finished:
                    _check_end(part.finish_reason)
                    data = frame.last(
                        part.text,
                        part.finish_reason,
                        part.stop_reason,
                        prompt_tokens,
                        context.completion_tokens,
                        total(context.counts.values()) if context.counts else None,
                    )
                elif not part.text and not new_tokens and not context.begun:
                    continue  # a part of the prompt was computed
                else:
                    data = frame.text(part.text)
                if not context.begun:
                    await _begin(send, context)
                    data = frame.first + data
                    tap = self.taps.open(collector, frame, context, send)
                context.writing()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                context.wrote(new_tokens)
                if output.finished:
                    await send({"type": "http.response.body", "body": b""})
                    context.finished()
                    return
        except asyncio.CancelledError:
            await call.abort(collector)
            raise
        except Exception:
            if context.begun:
                await call.abort(collector)
            raise
        finally:
            if tap is not None:
                tap.close()
            collector.close()

    async def _relay(
        self, route: Route, result: Any, request: Any, send: Any, context: RequestContext, counts: Collected
    ) -> None:
        """Pass on the events of vLLM's own generator, with the disclosure added."""
        discloser = route.discloser(request, counts, lambda: context.prompt_tokens)
        async with aclosing(route.events(result)) as events:
            async for event in events:
                if event.startswith(ERROR_EVENTS):
                    raise self._of_event(event, context)
                if not context.begun:
                    await _begin(send, context)
                context.writing()
                data = discloser.event(event).encode()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                context.wrote(1)
        await send({"type": "http.response.body", "body": b""})
        context.finished()

    def _of_event(self, event: str, context: RequestContext) -> Exception:
        """Return what went wrong, of an event with an error that vLLM has made of it."""
        if context.failed is not None:
            return context.failed
        error = json.loads(event.partition("data: ")[2])["error"]
        code = error.get("code")
        status = code if isinstance(code, int) else 500
        return faults.of_response(status, error["message"], error.get("param"), context.given, self.admission.longest)

    # -- answers in one piece ------------------------------------------------------------------------------------------

    async def _reply(self, route: Route, result: Any, send: Any, context: RequestContext, counts: Collected) -> None:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        if isinstance(result, ErrorResponse):
            told = result.error
            raise faults.of_response(told.code, told.message, told.param, context.given, self.admission.longest)
        answer = route.answer(result)
        if (tokens := tokens_of(counts)) is not None:
            answer["usage"] = disclose(answer.get("usage"), tokens, whole=counts.whole)
        await reply(send, 200, msgspec.json.encode(answer), context.notes)


def _rank(request: Any, headers: dict[bytes, bytes], holder: Holder | None, pinned: bool) -> Ranked:
    own, anything = (None, True) if holder is None else (holder.priority, False)
    return ranked(stated_priority(request, headers), own, anything=anything, pinned=pinned)


async def _begin(send: Any, context: RequestContext) -> None:
    """Send the head of a stream; what goes wrong from now on is said in it."""
    context.begun = True
    await send({"type": "http.response.start", "status": 200, "headers": [EVENT_STREAM, *context.notes]})


def _check_here() -> None:
    """Raise where the client has left: vLLM takes the cancellation for itself and answers with an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _check_end(finish_reason: str) -> None:
    """Raise where the engine failed."""
    if finish_reason == "error":
        from vllm.exceptions import GenerationError

        raise GenerationError("the engine ended the request with an error")
