"""The audit log: who was refused, and who has changed what. One JSON object for each line; never a payload, never a secret.

    {"time":"2026-01-31T12:00:00.123Z","outcome":"PERMISSION_DENIED","principal":"billing","credential":"API key 1f…",
     "listener":"http","address":"10.0.0.7","call":"POST /v1/topics/{topic}/records","resources":["topic:orders"],"request_id":"…"}

`outcome` is ok, or the code of the error; `validate_only` marks a change that was only checked; `forwarded_by` is the id of the
broker that forwarded the call and asserts its principal. Lines are written in a thread, in order; while that is slower than they
come, ROOM of them wait, and the rest are dropped and counted, which the next line tells: {"outcome":"DROPPED","dropped":17}. A
file that was moved away (logrotate) is opened anew. Invariants: nobody's call waits for this; a line is one line, whatever
clients send; strangers, who can make lines at will, leave half of the room to those who are known.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Final

import msgspec

from metadata.errors import InvalidArgument
from metadata.measurements import counter
from metadata.private_files import FILE_MODE

ROOM: Final = 10_000
AT_ONCE: Final = 1_000
LOGGER: Final = "tidelog.audit"
TEXT_CHARACTERS_MAX: Final = 300
CLOSE_TIMEOUT_S: Final = 5.0
_own_log = logging.getLogger(__name__)


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time: str
    outcome: str
    principal: str = ""
    credential: str = ""
    listener: str = ""
    address: str = ""
    call: str = ""
    resources: tuple[str, ...] = ()
    request_id: str = ""
    broker: str = ""
    reason: str = ""
    validate_only: bool = False
    forwarded_by: str = ""
    dropped: int = 0


@dataclass(slots=True)
class AuditCounts:
    """Counts the lines of an audit log since the start."""

    written: int = counter(
        "tidelog_audit_lines",
        "Lines of the audit log; those dropped came faster than they could be written, or could not be.",
        outcome="written",
    )
    dropped: int = counter("tidelog_audit_lines", outcome="dropped")


class AuditLog:
    """Its owner runs `run()` as a task."""

    def __init__(self, where: str, *, broker_id: str, now_ms: Callable[[], int]) -> None:
        """`where`: stderr, or a file. InvalidArgument where that can't be written."""
        self._handler = _handler(where)
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._waiting: deque[AuditLine] = deque()
        self._wake = asyncio.Event()
        self.counts = AuditCounts()
        self._dropped_unreported = 0
        self._writing = 0

    @property
    def waiting(self) -> int:
        """Lines that are not written yet."""
        return len(self._waiting) + self._writing

    def record(
        self,
        *,
        outcome: str,
        principal: str = "",
        credential: str = "",
        listener: str = "",
        address: str = "",
        call: str = "",
        resources: Sequence[str] = (),
        request_id: str = "",
        reason: str = "",
        validate_only: bool = False,
        forwarded_by: str = "",
    ) -> None:
        if len(self._waiting) >= (ROOM if principal else ROOM // 2):
            self.counts.dropped += 1
            self._dropped_unreported += 1
            return
        line = AuditLine(
            time=_rfc3339(self._now_ms()),
            outcome=outcome,
            principal=_cleaned(principal),
            credential=_cleaned(credential),
            listener=listener,
            address=_cleaned(address),
            call=_cleaned(call),
            resources=tuple(map(_cleaned, resources)),
            request_id=_cleaned(request_id),
            broker=self._broker_id,
            reason=_cleaned(reason),
            validate_only=validate_only,
            forwarded_by=_cleaned(forwarded_by),
        )
        self._waiting.append(line)
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled, then what is left, unless that takes too long."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while lines := self._next_lines():
                    self._writing = len(lines)
                    self._count(len(lines), await loop.run_in_executor(None, self._write, lines))
                    self._writing = 0
        finally:
            lines = []
            while more := self._next_lines():
                lines += more
            writing = loop.run_in_executor(None, self._write_last, lines)
            await asyncio.wait((writing,), timeout=CLOSE_TIMEOUT_S)

    def _next_lines(self) -> list[AuditLine]:
        lines = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        if self._dropped_unreported and len(self._waiting) < ROOM:
            dropped, self._dropped_unreported = self._dropped_unreported, 0
            lines.append(AuditLine(time=_rfc3339(self._now_ms()), outcome="DROPPED", dropped=dropped, broker=self._broker_id))
        return lines

    def _count(self, lines: int, is_written: bool) -> None:
        if is_written:
            self.counts.written += lines
        else:
            self.counts.dropped += lines

    def _write(self, lines: Sequence[AuditLine]) -> bool:
        """In a thread. Whether they are written."""
        text = "\n".join(msgspec.json.encode(line).decode() for line in lines)
        try:
            self._handler.handle(logging.LogRecord(LOGGER, logging.INFO, "", 0, "%s", (text,), None))
        except (OSError, ValueError) as error:  # its folder is gone, the disk is full, or the file is closed
            _own_log.error("%d lines of the audit log are lost: %s", len(lines), error)
            return False
        return True

    def _write_last(self, lines: Sequence[AuditLine]) -> None:
        if lines:
            self._write(lines)
        with suppress(OSError):  # what a full disk does not take at the end was told as lost when it was written
            self._handler.close()


class _PrivateFileHandler(logging.handlers.WatchedFileHandler):
    """Opens a file anew after it was moved away, and creates it for the user of this process alone.

    A file that exists keeps its rights: logrotate may have made it for a group.
    """

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_opened_or_private)


def _opened_or_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def _handler(where: str) -> logging.Handler:
    if where == "stderr":
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            os.close(os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE))
            handler = _PrivateFileHandler(where, encoding="utf-8")
        except OSError as error:
            raise InvalidArgument(f"audit_log: {where} can't be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.handleError = _raise_on  # type: ignore[method-assign, assignment]  # its own prints a traceback with the line
    return handler


def _raise_on(_: logging.LogRecord) -> None:
    """Called while the error is being handled: who writes must know of it."""
    raise


def _cleaned(text: str) -> str:
    """At most so long, and without the halves of characters that JSON may carry and UTF-8 may not."""
    return text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _rfc3339(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
