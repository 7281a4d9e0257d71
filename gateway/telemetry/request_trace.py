"""What a door needs of a trace, and no more: otlp.py makes them, where it is on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from segments.log.session_log import PendingAppend
    from segments.partition.partition_log import Appended


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


class Tracing(Protocol):
    def begin(self, name: str, traceparent: str, *, request_id: str) -> RequestTrace | None:
        """`traceparent`: as the client sent it; what it can't be read from begins a trace of its own. None: it is not sampled."""
        ...
