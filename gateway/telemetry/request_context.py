"""The call that this task answers: what the log, traces and the counts of refusals say of it.

A door begins it; a context variable carries it to whoever writes a line of the log below, in the same task or one that it starts.
Invariant: it holds names only, never a payload nor a secret.

How long the caller of the present request goes on waiting, where it said so: gRPC clients send a deadline along.

It is noted where a call begins, and looked at where something may have to be waited for, so that an answer (what there is, or why
there is nothing) comes before the caller has given up. Each call runs in a task of its own, so the note is its own, too.

What a door needs of a trace, and no more: otlp.py makes them, where it is on.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final, Protocol

from gateway.telemetry.traffic import ListenerTraffic
from metadata.errors import TidelogError

if TYPE_CHECKING:
    from segments.log.session_log import PendingAppend
    from segments.partition.partition_log import Appended

TRACEPARENT_BYTES_MAX: Final = 100
_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class RequestContext:
    __slots__ = ("_refused_as", "_request_id", "topic", "trace", "traceparent", "traffic")

    def __init__(self, traffic: ListenerTraffic, request_id: str = "", traceparent: str = "") -> None:
        """`traceparent`: as the client sent it (W3C Trace Context), unchecked."""
        self.traffic = traffic
        self._request_id = request_id
        self._refused_as = ""
        self.topic = ""
        """The last that records were sent to."""
        self.traceparent = traceparent
        self.trace: RequestTrace | None = None
        """Where this call is traced."""

    @property
    def request_id(self) -> str:
        """The client's own, or one that is made when it is first asked for."""
        if not self._request_id:
            self._request_id = os.urandom(16).hex()
        return self._request_id

    @property
    def trace_id(self) -> str:
        """Empty where there is none."""
        return self.trace.trace_id if self.trace is not None else ""

    def trace_with(self, tracing: Tracer | None, name: str) -> None:
        if tracing is not None:
            self.trace = tracing.begin(name, self.traceparent, request_id=self.request_id)

    def refused(self, error: TidelogError) -> None:
        self.traffic.refused(error)
        self._refused_as = error.code

    def end(self) -> None:
        self.traffic.open_calls -= 1
        if self.trace is not None:
            self.trace.end(self._refused_as)


_current: ContextVar[RequestContext | None] = ContextVar("current_call", default=None)


def current_call() -> RequestContext | None:
    return _current.get()


def begin_call(call: RequestContext) -> Token[RequestContext | None]:
    """For the rest of this task. The token is for `end_call`, where the task goes on to other calls."""
    call.traffic.calls += 1
    call.traffic.open_calls += 1
    return _current.set(call)


def end_call(call: RequestContext, token: Token[RequestContext | None]) -> None:
    call.end()
    _current.reset(token)


def note_refusal(error: TidelogError) -> None:
    """Of the whole call, as it is told."""
    call = _current.get()
    if call is not None:
        call.refused(error)


def note_topic(name: str) -> None:
    call = _current.get()
    if call is not None:
        call.topic = name


def sane_request_id(given: bytes) -> str:
    """A client's own id, where it is short and plain; else nothing."""
    return str(given, "ascii") if _SANE_REQUEST_ID.fullmatch(given) else ""


# Kept for the answer to arrive; of a short deadline a quarter.
ON_THE_WAY_S: Final = 0.25

_ends_s: ContextVar[float] = ContextVar("ends_s", default=math.inf)


def note_deadline(left_s: float | None) -> None:
    """Of the call that runs in this task. None: its caller waits for ever."""
    if left_s is not None:
        _ends_s.set(asyncio.get_running_loop().time() + left_s - min(ON_THE_WAY_S, left_s / 4))


def remaining_s() -> float:
    """For so long from now on an answer finds its caller."""
    return max(0.0, _ends_s.get() - asyncio.get_running_loop().time())


class RequestTrace(Protocol):
    """Of one call, from its beginning to its end."""

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        ...

    def produced(
        self, topics: Sequence[str], pending: Sequence[PendingAppend], found: Sequence[Appended], *, began_s: float, size_bytes: int
    ) -> None:
        """A request whose records were taken since `began_s` of the loop's clock, and what became of them."""
        ...

    def end(self, error_code: str = "") -> None: ...


class Tracer(Protocol):
    def begin(self, name: str, traceparent: str, *, request_id: str) -> RequestTrace | None:
        """`traceparent`: as the client sent it; what it can't be read from begins a trace of its own. None: it is not sampled."""
        ...
