"""Writes the audit log: refused calls, and changes with their outcome. One JSON object a line, without payloads and secrets.

    {"time":"2026-01-31T12:00:00.123Z","outcome":"PERMISSION_DENIED","principal":"billing","credential":"API key 1f…",
     "listener":"http","address":"10.0.0.7","call":"POST /v1/topics/{topic}/records","resources":["topic:orders"],
     "request_id":"…"}

`resources` are the topics, the groups, the cluster, and what else a change is about: `key:`, `principal:`, `acl:`, `quota:`,
`user:` (of SCRAM), `broker:`. Beyond twenty, the last one says how many are not listed: `+17 more`.

`outcome` is ok, or the code of the error. `validate_only` marks a change that was only checked. `forwarded_by` is the id of the
broker that forwarded the call and asserts its principal.

A thread writes the lines in order. At most LINES_MAX wait; more are dropped and counted, and a line reports them:
{"outcome":"DROPPED","dropped":17}. After logrotate has moved the file away, the log opens a new one.

The newest RECENT_MAX lines stay in memory, for administrators who ask this broker for them.

Invariants: no call waits for the audit log. A record is one line whatever its texts contain. Unauthenticated clients fill half of
the queue at most, and replace no line of an authenticated one in memory.
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
from itertools import count
from operator import itemgetter
from typing import Final

import msgspec

from gateway.access.authorization import RESOURCE_CHARACTERS_MAX
from metadata.errors import InvalidArgument
from metadata.measurements import counter
from metadata.private_files import FILE_MODE

# Lines that wait to be written, and lines of one write.
LINES_MAX: Final = 10_000
BATCH_LINES: Final = 1_000
# Lines that stay in memory: of authenticated clients, and of all others.
RECENT_MAX: Final = 500
RECENT_ANONYMOUS_MAX: Final = 100
LOGGER: Final = "tidelog.audit"
# Longer texts are cut.
TEXT_CHARACTERS_MAX: Final = 300
# How long a stopping broker waits for the lines that are left.
CLOSE_TIMEOUT_S: Final = 5.0
# Fields whose text may come from clients.
_CLIENT_FIELDS: Final = ("principal", "credential", "address", "call", "request_id", "reason", "forwarded_by")
_own_log = logging.getLogger(__name__)


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one line of the audit log; fields with their default are left out of the JSON."""

    outcome: str
    # AuditLog.record sets both.
    time: str = ""
    broker: str = ""
    principal: str = ""
    credential: str = ""
    listener: str = ""
    address: str = ""
    call: str = ""
    resources: tuple[str, ...] = ()
    request_id: str = ""
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
    """Queues audit lines and writes them in a thread. Its owner runs `run()` as a task."""

    def __init__(self, where: str, *, broker_id: str, now_ms: Callable[[], int]) -> None:
        """`where` is stderr or the path of a file. Raises InvalidArgument where that cannot be written."""
        self._handler = _handler(where)
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._waiting: deque[AuditLine] = deque()
        # With the number of the line: the clock may go back.
        self._recent: deque[tuple[int, AuditLine]] = deque(maxlen=RECENT_MAX)
        self._recent_anonymous: deque[tuple[int, AuditLine]] = deque(maxlen=RECENT_ANONYMOUS_MAX)
        self._numbers = count()
        self._wake = asyncio.Event()
        self.counts = AuditCounts()
        self._dropped_unreported = 0
        self._writing = 0

    @property
    def waiting(self) -> int:
        """Returns the number of lines that are not written yet."""
        return len(self._waiting) + self._writing

    def record(self, line: AuditLine) -> None:
        """Queues a line, completed with the time and this broker; drops it while the queue is full."""
        if len(self._waiting) >= (LINES_MAX if line.principal else LINES_MAX // 2):
            self.counts.dropped += 1
            self._dropped_unreported += 1
            return
        cleaned = {name: _cleaned(getattr(line, name)) for name in _CLIENT_FIELDS}
        resources = tuple(_cleaned(each, RESOURCE_CHARACTERS_MAX) for each in line.resources)
        stamped = msgspec.structs.replace(
            line, time=_rfc3339(self._now_ms()), broker=self._broker_id, resources=resources, **cleaned
        )
        self._waiting.append(stamped)
        (self._recent if line.principal else self._recent_anonymous).append((next(self._numbers), stamped))
        self._wake.set()

    def recent(self) -> list[AuditLine]:
        """Returns the lines that this broker holds in memory, newest first; they may not be written yet."""
        return [line for _, line in sorted((*self._recent, *self._recent_anonymous), key=itemgetter(0), reverse=True)]

    async def run(self) -> None:
        """Writes lines until cancelled, then those that are left, for at most CLOSE_TIMEOUT_S."""
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
        lines = [self._waiting.popleft() for _ in range(min(BATCH_LINES, len(self._waiting)))]
        if self._dropped_unreported and len(self._waiting) < LINES_MAX:
            dropped, self._dropped_unreported = self._dropped_unreported, 0
            lines.append(AuditLine(time=_rfc3339(self._now_ms()), outcome="DROPPED", dropped=dropped, broker=self._broker_id))
        return lines

    def _count(self, lines: int, is_written: bool) -> None:
        if is_written:
            self.counts.written += lines
        else:
            self.counts.dropped += lines

    def _write(self, lines: Sequence[AuditLine]) -> bool:
        """Writes the lines, in a thread. Returns False where they are lost."""
        text = "\n".join(msgspec.json.encode(line).decode() for line in lines)
        try:
            self._handler.handle(logging.LogRecord(LOGGER, logging.INFO, "", 0, "%s", (text,), None))
        except (OSError, ValueError) as error:  # the folder is gone, the disk is full, or the file is closed
            _own_log.error("audit log lines lost lines=%d: %s", len(lines), error)
            return False
        return True

    def _write_last(self, lines: Sequence[AuditLine]) -> None:
        if lines:
            self._write(lines)
        with suppress(OSError):  # lines that a full disk does not take were logged as lost when they were written
            self._handler.close()


class _PrivateFileHandler(logging.handlers.WatchedFileHandler):
    """Opens a new file after the old one was moved away; only the user of this process may read it.

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
    handler.handleError = _raise_on  # type: ignore[method-assign, assignment]  # the default prints a traceback with the line
    return handler


def _raise_on(_: logging.LogRecord) -> None:
    """Raises the error that is being handled, so that `_write` sees it."""
    raise


def _cleaned(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Returns the text cut to its bound, without lone surrogates, which UTF-8 cannot encode."""
    return text[:characters_max].encode("utf-8", "replace").decode()


def _rfc3339(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
