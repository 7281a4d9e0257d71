"""Carries the context of the current call through a task: ids, topic, refusal, deadline, and the interface of traces.

A listener begins a `RequestContext`. A context variable carries it to the log, in the same task and in tasks that it starts.
Invariant: it holds names only, never a payload or a secret.

The deadline of the caller is kept beside it: gRPC clients send one. Code that may wait reads `remaining_s`, so that an answer, or
the reason why there is none, leaves before the caller gives up. Each call runs in a task of its own, and so has its own deadline.

`Tracer` and `RequestTrace` are what a listener needs of tracing; otlp.py implements them.
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
    """One call of a client, from `begin_call` to `end`: its ids, topic, refusal and trace, for logs and metrics.

    `topic` is the last topic that records were sent to; `trace` is None if the call is not traced.
    """

    __slots__ = ("_refused_as", "_request_id", "topic", "trace", "traceparent", "traffic")

    def __init__(self, traffic: ListenerTraffic, request_id: str = "", traceparent: str = "") -> None:
        """`traceparent` is the client's header (W3C Trace Context), unchecked. Without a `request_id`, the call makes one."""
        self.traffic = traffic
        self._request_id = request_id
        self._refused_as = ""
        self.topic = ""
        self.traceparent = traceparent
        self.trace: RequestTrace | None = None

    @property
    def request_id(self) -> str:
        """Returns the client's request id, or a random one that is made at the first use."""
        if not self._request_id:
            self._request_id = os.urandom(16).hex()
        return self._request_id

    @property
    def trace_id(self) -> str:
        """Returns the id of the trace; empty if the call is not traced."""
        return self.trace.trace_id if self.trace is not None else ""

    def trace_with(self, tracing: Tracer | None, name: str) -> None:
        """Begins a trace of this call, if `tracing` is there and samples it."""
        if tracing is not None:
            self.trace = tracing.begin(name, self.traceparent, request_id=self.request_id)

    def refused(self, error: TidelogError) -> None:
        """Counts the error, and keeps its code for the trace."""
        self.traffic.refused(error)
        self._refused_as = error.code

    def end(self) -> None:
        """Ends the call and its trace."""
        self.traffic.open_calls -= 1
        if self.trace is not None:
            self.trace.end(self._refused_as)


_current: ContextVar[RequestContext | None] = ContextVar("current_call", default=None)


def current_call() -> RequestContext | None:
    """Returns the call that this task answers; None outside of calls."""
    return _current.get()


def begin_call(call: RequestContext) -> Token[RequestContext | None]:
    """Makes `call` the current call for the rest of this task. A task that answers several calls passes the token to `end_call`."""
    call.traffic.calls += 1
    call.traffic.open_calls += 1
    return _current.set(call)


def end_call(call: RequestContext, token: Token[RequestContext | None]) -> None:
    """Ends `call`, and restores the call that was current before it."""
    call.end()
    _current.reset(token)


def note_refusal(error: TidelogError) -> None:
    """Notes the error that refuses the current call as a whole."""
    call = _current.get()
    if call is not None:
        call.refused(error)


def note_topic(name: str) -> None:
    """Notes the topic that the current call sends records to."""
    call = _current.get()
    if call is not None:
        call.topic = name


def sane_request_id(given: bytes) -> str:
    """Returns a client's request id if it has at most 128 plain ASCII characters; else the empty string."""
    return str(given, "ascii") if _SANE_REQUEST_ID.fullmatch(given) else ""


# Part of a deadline that is kept for the answer's way to the client; at most a quarter of it.
ON_THE_WAY_S: Final = 0.25

_ends_s: ContextVar[float] = ContextVar("ends_s", default=math.inf)


def note_deadline(left_s: float | None) -> None:
    """Notes that the caller of this task's call waits for `left_s` more; None: without a limit."""
    if left_s is not None:
        _ends_s.set(asyncio.get_running_loop().time() + left_s - min(ON_THE_WAY_S, left_s / 4))


def remaining_s() -> float:
    """Returns the seconds from now in which an answer still reaches the caller; infinite without a deadline."""
    return max(0.0, _ends_s.get() - asyncio.get_running_loop().time())


class RequestTrace(Protocol):
    """The trace of one call, from its begin to `end`."""

    @property
    def trace_id(self) -> str:
        """Returns the id of the trace in 32 hex digits."""
        ...

    def produced(
        self, topics: Sequence[str], pending: Sequence[PendingAppend], found: Sequence[Appended], *, began_s: float, size_bytes: int
    ) -> None:
        """Adds a produce request to the trace: its appends since `began_s` of the loop's clock, and the accepted batches."""
        ...

    def end(self, error_code: str = "") -> None:
        """Ends the trace. `error_code` is the code of the error that refused the call."""
        ...


class Tracer(Protocol):
    """Begins the traces of calls."""

    def begin(self, name: str, traceparent: str, *, request_id: str) -> RequestTrace | None:
        """Begins the trace of a call; returns None if the call is not sampled.

        `traceparent` is the client's header. Without one that can be parsed, the call begins a trace of its own.
        """
        ...
